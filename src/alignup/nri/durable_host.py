"""The host of decide mode, whose ledger survives a restart: in the same kind of database as the agent's."""

import asyncio
import time
from copy import copy

import structlog

from alignup.align.decision import Decision
from alignup.align.errors import ParseError, RestoreError, StateError, StoreError, StoreProblem
from alignup.align.host import Host
from alignup.documents.decisions import DecisionDocument, decision_document
from alignup.documents.ledgers import restore_ledger
from alignup.nri.coalesced import Coalesced
from alignup.store.state_store import DurableState, StateStore

_log = structlog.get_logger()


class DurableHost:
    """A host, and the store of its ledger."""

    def __init__(self, host: Host, store: StateStore) -> None:
        self.host = host
        self._store = store
        self._decisions: list[tuple[DecisionDocument, float]] = []  #: for the history, with the next save
        self.save = Coalesced(self._save)  #: call it after changes; ``StoreError`` if they are not durable

    def load(self) -> None:
        """Restore the ledger; a pod that can no longer hold what it held, or a bad store, is left out and logged.

        The runtime says which pods run, and pods that are missing here are decided on anew.
        """
        try:
            stored_state = self._store.load(accept_loss=True)
            if lost_changes := self._store.lost_changes():
                _log.warning("changes of the stored state are lost", problem=lost_changes)
            entries = [] if stored_state is None else [pod.entry for pod in stored_state.pods]
            while stored_state is not None:
                try:
                    idle, providers = self.host.initial_ledger(), self.host.providers
                    self.host.ledger = restore_ledger(entries, stored_state.residue, idle=idle, providers=providers)
                    break
                except RestoreError as error:
                    if not error.uids:
                        raise
                    _log.warning("pods cannot keep their resources", problems=error.problems)
                    entries = [entry for entry in entries if entry.pod.uid not in error.uids]
        except (StateError, ParseError) as error:
            if isinstance(error, StoreError) and error.kind is not StoreProblem.UNUSABLE:
                raise
            names = self._store.set_aside()
            _log.warning("the stored state is unusable; starting without it", problem=str(error), set_aside=names)

    def record(self, decision: Decision) -> None:
        """Add a decision to the history, with the next save."""
        self._decisions.append((decision_document(decision), time.time()))

    async def _save(self) -> None:
        decisions, self._decisions = self._decisions, []
        result = await asyncio.to_thread(self._store.save, DurableState(host=copy(self.host)), decisions)
        if result.replaced:
            _log.error("the stored state was replaced", problem=result.replaced)
        if result.history_problem:
            _log.warning("decisions are missing in the history", problem=result.history_problem)
