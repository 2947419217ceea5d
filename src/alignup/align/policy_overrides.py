"""Policies, scopes and options of a command line, which replace the ones in settings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from alignup.align.cpus.options import OPTION_STAGES
from alignup.align.host import Settings
from alignup.align.release import FeatureStage
from alignup.align.settings import FeatureGates, Policy, Scope, TopologyOptions


class PolicyOverrides(NamedTuple):
    policy: str | None = None
    scope: str | None = None
    options: Mapping[str, str] = {}  #: of the topology or CPU manager's policy
    settings: Settings | None = None  #: from a KubeletConfiguration, which replace all

    def apply(self, settings: Settings) -> Settings:
        """Return *settings* with these policies and options; ``SettingsError`` for a wrong policy or option."""
        topology, gates = settings.topology, settings.gates
        cpu_options = {name: value for name, value in self.options.items() if name in OPTION_STAGES}
        topology_options = {name: value for name, value in self.options.items() if name not in OPTION_STAGES}
        topology = replace(
            topology,
            policy=Policy(self.policy or topology.policy),
            scope=Scope(self.scope or topology.scope),
            options=TopologyOptions.parse(topology_options, gates=gates, base=topology.options),
        )
        if any(OPTION_STAGES[name] is FeatureStage.ALPHA for name in cpu_options):
            gates = FeatureGates({**gates.changed, "CPUManagerPolicyAlphaOptions": True}, gates.release)
        cpus = replace(settings.cpus, options={**settings.cpus.options, **cpu_options})
        return replace(settings, topology=topology, cpus=cpus, gates=gates)
