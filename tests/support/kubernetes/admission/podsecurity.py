"""Pod Security admission, the levels `baseline` and `restricted`: which rules a pod breaks, in the real words.

Not here: host ports, SELinux, AppArmor, sysctls, /proc mounts, Windows, and versions of the rules older than `latest`.
"""

from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json

_ALLOWED_VOLUMES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
_BASELINE_CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)


def _containers(spec: Json) -> list[Json]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def _named(names: list[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return f"container {listed}" if len(names) == 1 else f"containers {listed}"


def _broken_by(spec: Json, breaks: Callable[[Json], bool]) -> list[str]:
    return [container["name"] for container in _containers(spec) if breaks(container.get("securityContext") or {})]


def _host(spec: Json) -> list[str]:
    namespaces = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    return [f"host namespaces ({', '.join(namespaces)})"] if namespaces else []


def _privileges(spec: Json, restricted: bool) -> list[str]:
    found = []
    names = _broken_by(spec, lambda security: bool(security.get("privileged")))
    if names:
        found.append(f"privileged ({_named(names)} must not set securityContext.privileged=true)")
    if restricted:
        names = _broken_by(spec, lambda security: security.get("allowPrivilegeEscalation") is not False)
        if names:
            must = "must set securityContext.allowPrivilegeEscalation=false"
            found.append(f"allowPrivilegeEscalation != false ({_named(names)} {must})")
    return found


def _capabilities(spec: Json, restricted: bool) -> list[str]:
    allowed = ("NET_BIND_SERVICE",) if restricted else _BASELINE_CAPABILITIES
    said = []
    if restricted:
        names = _broken_by(spec, lambda s: "ALL" not in (s.get("capabilities") or {}).get("drop", []))
        if names:
            said.append(f'{_named(names)} must set securityContext.capabilities.drop=["ALL"]')
    added: dict[str, list[str]] = {}
    for container in _containers(spec):
        capabilities = (container.get("securityContext") or {}).get("capabilities") or {}
        wrong = [name for name in capabilities.get("add", []) if name not in allowed]
        if wrong:
            added[container["name"]] = wrong
    if added:
        listed = ", ".join(f'"{name}"' for name in sorted({name for wrong in added.values() for name in wrong}))
        said.append(f"{_named(list(added))} must not include {listed} in securityContext.capabilities.add")
    kind = "unrestricted capabilities" if restricted else "non-default capabilities"
    return [f"{kind} ({'; '.join(said)})"] if said else []


def _volumes(spec: Json, restricted: bool) -> list[str]:
    volumes = spec.get("volumes", [])
    if not restricted:
        paths = [volume["name"] for volume in volumes if "hostPath" in volume]
        return [f'hostPath volumes (volume "{name}")' for name in paths[:1]]
    found = []
    for volume in volumes:
        kind = next((kind for kind in volume if kind != "name"), "emptyDir")
        if kind not in _ALLOWED_VOLUMES:
            found.append(f'restricted volume types (volume "{volume["name"]}" uses restricted volume type "{kind}")')
    return found


def _users(spec: Json) -> list[str]:
    pod = spec.get("securityContext") or {}
    found = []
    names = _broken_by(spec, lambda s: s.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True)
    if names:
        found.append(f"runAsNonRoot != true (pod or {_named(names)} must set securityContext.runAsNonRoot=true)")
    if pod.get("runAsUser") == 0:
        found.append("runAsUser=0 (pod must not set runAsUser=0)")
    names = _broken_by(spec, lambda s: s.get("runAsUser") == 0)
    if names:
        found.append(f"runAsUser=0 ({_named(names)} must not set runAsUser=0)")
    return found


def _seccomp(spec: Json) -> list[str]:
    pod = (spec.get("securityContext") or {}).get("seccompProfile") or {}

    def breaks(security: Json) -> bool:
        profile = security.get("seccompProfile") or pod
        return profile.get("type") not in ("RuntimeDefault", "Localhost")

    names = _broken_by(spec, breaks)
    if not names:
        return []
    must = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return [f"seccompProfile (pod or {_named(names)} {must})"]


def violations(level: str, spec: Json) -> list[str]:
    """The rules of `level` that a pod's spec breaks; none for `privileged`."""
    if level not in ("baseline", "restricted"):
        return []
    strict = level == "restricted"
    found = _host(spec) + _privileges(spec, strict) + _capabilities(spec, strict) + _volumes(spec, strict)
    return found + (_users(spec) + _seccomp(spec) if strict else [])


def sentence(level: str, broken: list[str], verb: str) -> str:
    return f'{verb} PodSecurity "{level}:latest": {", ".join(broken)}'
