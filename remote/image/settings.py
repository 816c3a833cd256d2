"""Settings of the build VM, the image, its registry and the model hub."""

from dataclasses import dataclass

from bench.records.validation import setting


@dataclass(frozen=True, kw_only=True)
class BuildSection:
    """The build VM."""

    host: str | None = setting(
        None, "SSH destination: a name from ~/.ssh/config, USER@HOST or ssh://USER@HOST:PORT; null: this machine"
    )
    tmpdir: str | None = setting(
        None, "folder on the VM for models, context and archives, e.g. /mnt/fss; null: ~/.qlora-fleet"
    )


@dataclass(frozen=True, kw_only=True)
class ImageSection:
    """The image."""

    profile: str = setting(
        "current", "build variant in image/profiles.yaml: current, or reference (the published stack, repaired)"
    )
    name: str = setting("qlora-fleet", "image name on the build VM; the tag is the profile")
    base: str | None = setting(None, "base image, preferably NAME@sha256:...; null: that of the profile")
    target: str = setting("prod", "build stage: prod, or dev (prod with development tools)", choices=("prod", "dev"))
    models: tuple[str, ...] = setting(
        (), "models to include, e.g. [mistralai/Mistral-7B-Instruct-v0.3]; on the VM in TMPDIR/qlora-fleet/models"
    )
    extra_packages: tuple[str, ...] = setting(
        (), "packages of the base's archive to install, e.g. [cuda-cupti-12-8, cuda-minimal-build-12-8]"
    )
    index_url: str | None = setting(None, "package index for the build; null: PyPI")
    wheels: str | None = setting(None, "local folder with every wheel of the lock, for a VM that cannot reach an index")
    pip_conf: str | None = setting(None, "pip.conf file on the VM, passed to the build as a secret")
    network: str = setting(
        "default", "network of the build steps: default, host, none", choices=("default", "host", "none")
    )
    client: str = setting(
        "docker", "container engine's client on the VM; a path if another program of that name comes first on PATH"
    )
    torch: str = setting(
        "wheel",
        "wheel: the wheel in the lock; source: built for image.gpu_archs only; takes hours, 40 GB",
        choices=("wheel", "source"),
    )
    gpu_archs: tuple[str, ...] = setting(
        ("8.6",), "compute capabilities that the image has compiled kernels for: 8.6 A10, 8.0 A100, 8.9 L4, 9.0 H100"
    )
    apt_snapshot: str | None = setting(
        None,
        "date of Ubuntu's package archive, e.g. 20260901T000000Z; null: today's packages",
        pattern=r"^\d{8}T\d{6}Z$",
        expected="a time like 20260901T000000Z, as text",
    )
    deadline_sec: float = setting(14_400.0, "time limit of a build, push or archive", unit="seconds", ge=60, le=604_800)


@dataclass(frozen=True, kw_only=True)
class RegistrySection:
    """The image's registry."""

    image: str | None = setting(
        None, "target of `inv push`: HOST/REPOSITORY:TAG; in OCIR REGION-KEY.ocir.io/NAMESPACE/REPOSITORY:TAG"
    )
    user: str | None = setting(
        None, "login; in OCIR NAMESPACE/USER, NAMESPACE/oracleidentitycloudservice/USER or NAMESPACE/DOMAIN/USER"
    )
    password_file: str | None = setting(
        None, "local file, mode 0600, with the password or token only; null: `inv push` and `inv deploy` ask for it"
    )
    token_hosts: tuple[str, ...] = setting(
        (), "other hosts that may receive the login in exchange for a token; the registry's own host always may"
    )


@dataclass(frozen=True, kw_only=True)
class HubSection:
    """The hub that models come from."""

    endpoint: str | None = setting(
        None, "address of the model hub; null: https://huggingface.co; with a token: https or the VM itself"
    )
    token_file: str | None = setting(None, "local file, mode 0600, with the token for gated models only")
