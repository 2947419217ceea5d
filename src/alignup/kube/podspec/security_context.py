"""As whom a container runs and what it may do: the pod's security context, and over it the container's own.

What goes beyond the "baseline" of the Pod Security Standards has to be allowed, field by field.
"""

import re
from collections.abc import Mapping

from alignup.align.bits import quote
from alignup.kube.podspec.object_reader import ObjectReader
from alignup.kube.podspec.types import Permission, SecurityContext

#: By which AppArmor profiles were set before there was a field; the name of a container follows.
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"

_CAPABILITIES = frozenset(
    {
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
    }
)
_SELINUX = ("user", "role", "type", "level")
_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
_PROFILES = ("RuntimeDefault", "Unconfined", "Localhost")
_ANNOTATED = {"runtime/default": "RuntimeDefault", "unconfined": "Unconfined"}

_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
_SYSCTL_LENGTH = 253
_SAFE = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_notsent_lowat",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_slow_start_after_idle",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
_OF_IPC = frozenset(
    {
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shm_rmid_forced",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
    }
)


def read_security_context(container: ObjectReader, spec: ObjectReader, *, metadata: ObjectReader) -> SecurityContext:
    """The rights of *container* in the pod *spec*; *metadata* may have an annotation about AppArmor."""
    own, shared = container.part("securityContext"), spec.part("securityContext")

    def nearest(name: str) -> ObjectReader:
        return own if own.has(name) else shared

    capabilities = own.part("capabilities")
    for index, name in enumerate(capabilities.strings("add")):
        if name not in _CAPABILITIES:
            capabilities.ask(Permission.PRIVILEGED, f"add[{index}]", f"asks for the capability {quote(name)}")
    if own.flag("privileged"):
        own.ask(Permission.PRIVILEGED, "privileged", "asks for all rights on the host")
    return SecurityContext(
        user=nearest("runAsUser").number("runAsUser"),
        group=nearest("runAsGroup").number("runAsGroup"),
        run_as_non_root=nearest("runAsNonRoot").flag("runAsNonRoot"),
        privileged=own.flag("privileged"),
        read_only_root=own.flag("readOnlyRootFilesystem"),
        no_new_privileges=_no_new_privileges(own),
        add=capabilities.strings("add"),
        drop=capabilities.strings("drop"),
        seccomp=_profile(nearest("seccompProfile"), "seccompProfile", "seccomp"),
        apparmor=_profile(nearest("appArmorProfile"), "appArmorProfile", "AppArmor")
        or _annotated(metadata, container.text("name")),
        selinux=_selinux(nearest("seLinuxOptions").part("seLinuxOptions")),
        unmasked=_unmasked(own),
    )


def read_pod_security_context(spec: ObjectReader) -> SecurityContext:
    """What the pod's security context says by itself."""
    nothing = ObjectReader(spec.notes, "", {})
    return read_security_context(nothing, spec, metadata=nothing)


def read_supplemental_groups(spec: ObjectReader) -> tuple[int, ...]:
    """The supplemental groups of a pod, that of its volumes among them."""
    context = spec.part("securityContext")
    listed = context.each("supplementalGroups")
    found = (*map(listed.number, listed.found), context.number("fsGroup"))
    return tuple(dict.fromkeys(group for group in found if group is not None))


def read_sysctls(spec: ObjectReader) -> Mapping[str, str]:
    """The kernel's parameters a pod sets for itself."""
    found: dict[str, str] = {}
    for part in spec.part("securityContext").parts("sysctls"):
        written = part.required("name")
        if not written:
            continue
        if len(written) > _SYSCTL_LENGTH or not _SYSCTL.fullmatch(written):
            part.bad(
                "name", f"Invalid value: {quote(written)}: must be the name of a sysctl, such as net.core.somaxconn"
            )
            continue
        name = _dotted(written)
        if name in found:
            part.bad("name", f"Duplicate value: {quote(written)}")
        found[name] = part.text("value")
        _judge_sysctl(part, name, spec)
    return found


def _judge_sysctl(part: ObjectReader, name: str, spec: ObjectReader) -> None:
    network = name.startswith("net.") or name == "kernel.domainname"  # on the host's network it has the host's name
    ipc = name.startswith("fs.mqueue.") or name in _OF_IPC
    if not network and not ipc:
        part.bad("name", f"Invalid value: {quote(name)}: is the whole host's, not a pod's; set it on the host")
    elif network and spec.flag("hostNetwork"):
        part.bad("name", f"Invalid value: {quote(name)}: may not be specified when 'hostNetwork' is true")
    elif ipc and spec.flag("hostIPC"):
        part.bad("name", f"Invalid value: {quote(name)}: may not be specified when 'hostIPC' is true")
    elif name not in _SAFE:
        part.ask(Permission.SYSCTL, "name", f"asks for {quote(name)}, which is no safe sysctl")


def _dotted(name: str) -> str:
    """A sysctl's name with dots between its parts, whichever of the two ways it was written in."""
    dot, slash = name.find("."), name.find("/")
    if slash < 0 or 0 <= dot < slash:
        return name
    return name.translate({ord("/"): ".", ord("."): "/"})


def _no_new_privileges(own: ObjectReader) -> bool:
    """Whether processes may gain no rights their parents do not have."""
    held = own.has("allowPrivilegeEscalation") and not own.flag("allowPrivilegeEscalation")
    if held and own.flag("privileged"):
        own.bad("", "Invalid value: cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    return held


def _unmasked(own: ObjectReader) -> bool:
    if own.choice("procMount", ("Default", "Unmasked"), "Default") == "Default":
        return False
    own.ask(Permission.PRIVILEGED, "procMount", "asks for all of /proc")
    return True


def _profile(part: ObjectReader, name: str, system: str) -> str:
    """A profile of seccomp or AppArmor; empty where none is named."""
    if not part.has(name):
        return ""
    profile = part.part(name)
    kind = profile.choice("type", _PROFILES) if profile.required("type") else ""
    path = profile.text("localhostProfile")
    if kind == "Localhost":
        if not path or path != path.strip():
            profile.bad("localhostProfile", f"Required value: must be set when {system} type is Localhost")
        if system == "seccomp" and (path.startswith("/") or ".." in path.split("/")):
            profile.bad("localhostProfile", f"Invalid value: {quote(path)}: must be a relative path without '..'")
        return f"{kind}/{path}"
    if profile.has("localhostProfile"):
        profile.bad("localhostProfile", f"Invalid value: can only be set when {system} type is Localhost")
    if kind == "Unconfined":
        profile.ask(Permission.PRIVILEGED, "type", f"asks to run without {system}")
    return kind


def _annotated(metadata: ObjectReader, container: str) -> str:
    """The AppArmor profile an annotation names."""
    key = _APPARMOR + container
    annotated, field = metadata.texts("annotations").get(key, ""), f"annotations[{key}]"
    if annotated.startswith("localhost/"):
        return f"Localhost/{annotated.removeprefix('localhost/')}"
    profile = _ANNOTATED.get(annotated, "")
    if annotated and not profile:
        metadata.bad(field, f"Invalid value: {quote(annotated)}: must be a profile, such as runtime/default")
    elif profile == "Unconfined":
        metadata.ask(Permission.PRIVILEGED, field, "asks to run without AppArmor")
    return profile


def _selinux(part: ObjectReader) -> Mapping[str, str]:
    """What SELinux calls a container."""
    found = {name: part.text(name) for name in _SELINUX if part.text(name)}
    for name in ("user", "role"):
        if name in found:
            part.ask(Permission.PRIVILEGED, name, f"asks for the SELinux {name} {quote(found[name])}")
    kind = found.get("type", "")
    if kind not in _SELINUX_TYPES:
        part.ask(Permission.PRIVILEGED, "type", f"asks for the SELinux type {quote(kind)}")
    return found
