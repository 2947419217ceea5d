"""``alignup.explain``: a decision as text and as HTML, with its remedies."""

from dataclasses import replace

import pytest

import alignup
from alignup.explain import page, why

MACHINE = "examples/node/machine.yaml"


@pytest.fixture
def host():
    machine = alignup.load_machine(MACHINE)
    return alignup.Host(machine, alignup.load_settings("examples/node/kubelet.yaml", machine))


@pytest.fixture
def trainer():
    (pod,) = alignup.load_pods("examples/node/trainer.yaml")
    return pod


def test_an_admitted_pod_has_no_reasons_and_no_remedies(host, trainer):
    answer = why(host, trainer)

    assert answer.decision.admitted
    assert (answer.reasons, answer.remedies) == ((), ())
    assert str(answer).startswith("Pod ml/trainer-0 is admitted")
    assert len(host.ledger.pods) == 0


def test_a_rejected_pod_is_explained_and_every_remedy_admits_it(host, trainer):
    for pod in alignup.load_pods("examples/node/running.yaml"):
        host.admit(pod)
    answer = why(host, trainer)

    assert repr(answer) == f"<PodExplanation: {answer.verdict}>"
    assert answer.reasons
    assert answer.remedies
    for proposal in answer.remedies:
        changed_host, changed_pod = proposal.apply(host, trainer)
        assert changed_host.decide(changed_pod).admitted
        assert proposal.describe(host.ledger) in str(answer)
    assert answer._repr_html_().count("<li>") == len(answer.reasons) + len(answer.remedies)
    assert answer.to_rows() == answer.decision.to_rows()


def test_without_time_nothing_is_searched_and_the_answer_says_so(host, trainer):
    for pod in alignup.load_pods("examples/node/running.yaml"):
        host.admit(pod)
    answer = why(host, trainer, seconds=-1)

    assert answer.remedies == ()
    assert "Time ran out" in str(answer)


def test_a_page_escapes_all_names(host, trainer):
    hostile = replace(trainer, name='"><script>alert(1)</script>')
    text = page([why(host, hostile)])

    assert "<script" not in text
    assert text.startswith("<!DOCTYPE html>")
