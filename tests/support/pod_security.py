"""Rules of Pod Security level `restricted` that a pod's spec violates.

Not covered: host ports, SELinux, AppArmor, sysctls, /proc mounts, Windows, and older versions of the rules.
"""

from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"),
}
_PROFILES = ("RuntimeDefault", "Localhost")


def violations(spec: dict[str, Any]) -> list[str]:
    """Return the violated rules: the field, and the container if it is one's."""
    pod = spec.get("securityContext") or {}
    violated = [field for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
    violated += [f"volume {kind}" for kind in sorted(kinds - _VOLUMES)]
    violated += ["runAsUser"] if pod.get("runAsUser") == 0 else []
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        own = container.get("securityContext") or {}
        capabilities = own.get("capabilities") or {}
        keeps = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities.drop": "ALL" in capabilities.get("drop", []),
            "capabilities.add": {*capabilities.get("add", [])} <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": own.get("runAsNonRoot", pod.get("runAsNonRoot")) is True,
            "runAsUser": own.get("runAsUser") != 0,
            "seccompProfile": (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") in _PROFILES,
        }
        violated += [f"{rule} of {container['name']}" for rule, is_kept in keeps.items() if not is_kept]
    return violated
