"""Reads security contexts: the pod's, overridden by the container's.

Anything beyond the "baseline" profile of the Pod Security Standards requires a permission.
"""

import re
from collections.abc import Mapping

from alignup.align.bits import quote
from alignup.kubernetes.manifests.object_reader import ObjectReader
from alignup.kubernetes.podspec.types import Permission, SecurityContext

#: The annotation that set AppArmor profiles before there was a field; a container name follows.
_APPARMOR_ANNOTATION = "container.apparmor.security.beta.kubernetes.io/"
_ANNOTATED_PROFILES = {"runtime/default": "RuntimeDefault", "unconfined": "Unconfined"}

_BASELINE_CAPABILITIES = """
    AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT
"""
_SELINUX_OPTIONS = ("user", "role", "type", "level")
_BASELINE_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
_PROFILES = ("RuntimeDefault", "Unconfined", "Localhost")

_SYSCTL = re.compile(r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?")
_SYSCTL_LENGTH = 253
_SAFE_SYSCTLS = """
    kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports
    net.ipv4.ip_unprivileged_port_start net.ipv4.ping_group_range net.ipv4.tcp_fin_timeout
    net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes net.ipv4.tcp_keepalive_time net.ipv4.tcp_notsent_lowat
    net.ipv4.tcp_rmem net.ipv4.tcp_slow_start_after_idle net.ipv4.tcp_syncookies net.ipv4.tcp_wmem
"""
_IPC_SYSCTLS = """
    kernel.msgmax kernel.msgmnb kernel.msgmni kernel.sem kernel.shm_rmid_forced kernel.shmall kernel.shmmax
    kernel.shmmni
"""


def read_security_context(container: ObjectReader, spec: ObjectReader, *, metadata: ObjectReader) -> SecurityContext:
    """The security context of *container*, or of the pod if it is empty; *metadata* may have an AppArmor annotation."""
    own, shared = container.child("securityContext"), spec.child("securityContext")

    def nearest(name: str) -> ObjectReader:
        return own if own.has(name) else shared

    capabilities = own.child("capabilities")
    for index, name in enumerate(capabilities.strings("add")):
        if name not in _BASELINE_CAPABILITIES.split():
            capabilities.require(Permission.PRIVILEGED, f"add[{index}]", f"capability {quote(name)}")
    privileged = own.flag("privileged")
    if privileged:
        own.require(Permission.PRIVILEGED, "privileged", "privileged mode")
    no_new_privileges = own.has("allowPrivilegeEscalation") and not own.flag("allowPrivilegeEscalation")
    if no_new_privileges and privileged:
        own.error("", "Invalid value: cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    unmasked = own.choice("procMount", ("Default", "Unmasked")) == "Unmasked"
    if unmasked:
        own.require(Permission.PRIVILEGED, "procMount", "an unmasked /proc")
    return SecurityContext(
        user=nearest("runAsUser").number("runAsUser"),
        group=nearest("runAsGroup").number("runAsGroup"),
        run_as_non_root=nearest("runAsNonRoot").flag("runAsNonRoot"),
        privileged=privileged,
        read_only_root=own.flag("readOnlyRootFilesystem"),
        no_new_privileges=no_new_privileges,
        add=capabilities.strings("add"),
        drop=capabilities.strings("drop"),
        seccomp=_profile(nearest("seccompProfile"), "seccompProfile", "seccomp"),
        apparmor=_profile(nearest("appArmorProfile"), "appArmorProfile", "AppArmor")
        or _annotated_profile(metadata, container.text("name")),
        selinux=_selinux(nearest("seLinuxOptions").child("seLinuxOptions")),
        unmasked=unmasked,
    )


def read_sysctls(spec: ObjectReader) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for sysctl in spec.child("securityContext").children("sysctls"):
        written = sysctl.required("name")
        if not written:
            continue
        if len(written) > _SYSCTL_LENGTH or not _SYSCTL.fullmatch(written):
            sysctl.invalid("name", written, "must be the name of a sysctl, such as net.core.somaxconn")
            continue
        dot, slash = written.find("."), written.find("/")
        swapped = slash >= 0 and not 0 <= dot < slash  # slashes separate, and dots belong to the name
        name = written.translate({ord("/"): ".", ord("."): "/"}) if swapped else written
        if name in found:
            sysctl.error("name", f"Duplicate value: {quote(written)}")
        found[name] = sysctl.text("value")
        _check_sysctl(sysctl, name, spec)
    return found


def _check_sysctl(sysctl: ObjectReader, name: str, spec: ObjectReader) -> None:
    network = name.startswith("net.") or name == "kernel.domainname"
    ipc = name.startswith("fs.mqueue.") or name in _IPC_SYSCTLS.split()
    if not network and not ipc:
        sysctl.invalid("name", name, "is not namespaced; set it on the host")
    elif network and spec.flag("hostNetwork"):
        sysctl.invalid("name", name, "may not be specified when 'hostNetwork' is true")
    elif ipc and spec.flag("hostIPC"):
        sysctl.invalid("name", name, "may not be specified when 'hostIPC' is true")
    elif name not in _SAFE_SYSCTLS.split():
        sysctl.require(Permission.SYSCTL, "name", f"unsafe sysctl {quote(name)}")


def _profile(owner: ObjectReader, name: str, system: str) -> str:
    """A seccomp or AppArmor profile; empty if none is set."""
    if not owner.has(name):
        return ""
    profile = owner.child(name)
    kind = profile.choice("type", _PROFILES) if profile.required("type") else ""
    path = profile.text("localhostProfile")
    if kind == "Localhost":
        if not path or path != path.strip():
            profile.error("localhostProfile", f"Required value: must be set when {system} type is Localhost")
        if system == "seccomp" and (path.startswith("/") or ".." in path.split("/")):
            profile.invalid("localhostProfile", path, "must be a relative path without '..'")
        return f"{kind}/{path}"
    if profile.has("localhostProfile"):
        profile.error("localhostProfile", f"Invalid value: can only be set when {system} type is Localhost")
    if kind == "Unconfined":
        profile.require(Permission.PRIVILEGED, "type", f"running without {system}")
    return kind


def _annotated_profile(metadata: ObjectReader, container: str) -> str:
    key = _APPARMOR_ANNOTATION + container
    annotated, field = metadata.string_map("annotations").get(key, ""), f"annotations[{key}]"
    if annotated.startswith("localhost/"):
        return f"Localhost/{annotated.removeprefix('localhost/')}"
    profile = _ANNOTATED_PROFILES.get(annotated, "")
    if annotated and not profile:
        metadata.invalid(field, annotated, "must be a profile, such as runtime/default")
    elif profile == "Unconfined":
        metadata.require(Permission.PRIVILEGED, field, "running without AppArmor")
    return profile


def _selinux(options: ObjectReader) -> Mapping[str, str]:
    found = {name: options.text(name) for name in _SELINUX_OPTIONS if options.text(name)}
    for name in ("user", "role"):
        if name in found:
            options.require(Permission.PRIVILEGED, name, f"SELinux {name} {quote(found[name])}")
    kind = found.get("type", "")
    if kind not in _BASELINE_SELINUX_TYPES:
        options.require(Permission.PRIVILEGED, "type", f"SELinux type {quote(kind)}")
    return found
