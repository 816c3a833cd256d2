"""The way in: one verb, its arguments as JSON."""

import sys


def main() -> int:
    # Isolated, Python does not look for modules beside the file it runs.
    sys.path.insert(0, __file__.rsplit("/", 4)[0])
    import json

    from remote.jobs.host_agent.util import CUT_SHORT, REFUSED, CutShort, Refusal

    verb = sys.argv[1]
    if verb in ("send", "missing", "receive"):
        from remote.jobs.host_agent.files import VERBS
    elif verb == "start":
        from remote.jobs.host_agent.start import VERBS
    else:
        from remote.jobs.host_agent.jobs import VERBS
    arguments = json.loads(sys.argv[2])
    try:
        VERBS[verb](arguments)
    except OSError as error:
        # A write that finds no room names no file: then the folder that was worked in does.
        where = error.filename or arguments.get("job") or arguments.get("root")
        sys.stderr.write(f"{error}\n" if where is None else f"{where}: {error.strerror}\n")
        return REFUSED
    except (Refusal, CutShort) as error:
        sys.stderr.write(f"{error}\n")
        return CUT_SHORT if isinstance(error, CutShort) else REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
