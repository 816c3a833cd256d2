"""Pod Security admission, the levels `baseline` and `restricted`: the rules a pod violates, with the real messages.

Not covered: host ports, SELinux, AppArmor, sysctls, /proc mounts, Windows, and older versions of the rules.
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


def _container_list(names: list[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return f"container {listed}" if len(names) == 1 else f"containers {listed}"


def _broken_by(spec: Json, breaks: Callable[[Json], bool]) -> list[str]:
    return [container["name"] for container in _containers(spec) if breaks(container.get("securityContext") or {})]


def _host(spec: Json) -> list[str]:
    namespaces = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    return [f"host namespaces ({', '.join(namespaces)})"] if namespaces else []


def _privileges(spec: Json, restricted: bool) -> list[str]:
    violated = []
    names = _broken_by(spec, lambda security: bool(security.get("privileged")))
    if names:
        violated.append(f"privileged ({_container_list(names)} must not set securityContext.privileged=true)")
    if restricted:
        names = _broken_by(spec, lambda security: security.get("allowPrivilegeEscalation") is not False)
        if names:
            demand = "must set securityContext.allowPrivilegeEscalation=false"
            violated.append(f"allowPrivilegeEscalation != false ({_container_list(names)} {demand})")
    return violated


def _capabilities(spec: Json, restricted: bool) -> list[str]:
    allowed = ("NET_BIND_SERVICE",) if restricted else _BASELINE_CAPABILITIES
    demands = []
    if restricted:
        names = _broken_by(spec, lambda s: "ALL" not in (s.get("capabilities") or {}).get("drop", []))
        if names:
            demands.append(f'{_container_list(names)} must set securityContext.capabilities.drop=["ALL"]')
    added: dict[str, list[str]] = {}
    for container in _containers(spec):
        capabilities = (container.get("securityContext") or {}).get("capabilities") or {}
        wrong = [name for name in capabilities.get("add", []) if name not in allowed]
        if wrong:
            added[container["name"]] = wrong
    if added:
        listed = ", ".join(f'"{name}"' for name in sorted({name for wrong in added.values() for name in wrong}))
        demands.append(f"{_container_list(list(added))} must not include {listed} in securityContext.capabilities.add")
    kind = "unrestricted capabilities" if restricted else "non-default capabilities"
    return [f"{kind} ({'; '.join(demands)})"] if demands else []


def _volumes(spec: Json, restricted: bool) -> list[str]:
    volumes = spec.get("volumes", [])
    if not restricted:
        paths = [volume["name"] for volume in volumes if "hostPath" in volume]
        return [f'hostPath volumes (volume "{name}")' for name in paths[:1]]
    violated = []
    for volume in volumes:
        kind = next((kind for kind in volume if kind != "name"), "emptyDir")
        if kind not in _ALLOWED_VOLUMES:
            uses = f'volume "{volume["name"]}" uses restricted volume type "{kind}"'
            violated.append(f"restricted volume types ({uses})")
    return violated


def _users(spec: Json) -> list[str]:
    pod = spec.get("securityContext") or {}
    violated = []
    names = _broken_by(spec, lambda s: s.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True)
    if names:
        violated.append(
            f"runAsNonRoot != true (pod or {_container_list(names)} must set securityContext.runAsNonRoot=true)"
        )
    if pod.get("runAsUser") == 0:
        violated.append("runAsUser=0 (pod must not set runAsUser=0)")
    names = _broken_by(spec, lambda s: s.get("runAsUser") == 0)
    if names:
        violated.append(f"runAsUser=0 ({_container_list(names)} must not set runAsUser=0)")
    return violated


def _seccomp(spec: Json) -> list[str]:
    pod = (spec.get("securityContext") or {}).get("seccompProfile") or {}

    def breaks(security: Json) -> bool:
        profile = security.get("seccompProfile") or pod
        return profile.get("type") not in ("RuntimeDefault", "Localhost")

    names = _broken_by(spec, breaks)
    if not names:
        return []
    must = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return [f"seccompProfile (pod or {_container_list(names)} {must})"]


def violations(level: str, spec: Json) -> list[str]:
    """Return the rules of `level` that a pod's spec violates; empty for `privileged`."""
    if level not in ("baseline", "restricted"):
        return []
    strict = level == "restricted"
    violated = _host(spec) + _privileges(spec, strict) + _capabilities(spec, strict) + _volumes(spec, strict)
    return violated + (_users(spec) + _seccomp(spec) if strict else [])


def sentence(level: str, broken: list[str], verb: str) -> str:
    return f'{verb} PodSecurity "{level}:latest": {", ".join(broken)}'
