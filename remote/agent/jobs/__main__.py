"""Entry point: one verb and its arguments as JSON."""

import sys


def main() -> int:
    # In isolated mode, Python does not search the folder of the file that it runs.
    sys.path.insert(0, __file__.rsplit("/", 4)[0])
    import json

    from remote.agent.shared.wire import EXIT_REFUSED, EXIT_TRUNCATED, InputTruncated, RequestRefused

    verb = sys.argv[1]
    if verb in ("listing", "send", "missing", "receive"):
        from remote.agent.jobs.files import VERBS
    else:
        from remote.agent.jobs.jobs import VERBS
    arguments = json.loads(sys.argv[2])
    try:
        VERBS[verb](arguments)
    except OSError as error:
        # An error of write() has no file name: report the request's folder.
        path = error.filename or arguments.get("job") or arguments.get("root")
        sys.stderr.write(f"{error}\n" if path is None else f"{path}: {error.strerror}\n")
        return EXIT_REFUSED
    except (RequestRefused, InputTruncated) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_TRUNCATED if isinstance(error, InputTruncated) else EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
