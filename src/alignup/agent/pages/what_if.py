"""The "what if" form: another policy, scope or amount, answered by the decision code on the node as it is now."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import NamedTuple

from alignup.agent.pages.decision_page import decision_body
from alignup.align.admit import effective_policy
from alignup.align.decision import Decision
from alignup.align.errors import AlignError, ParseError, PodError
from alignup.align.explain import changes
from alignup.align.explain.changes import Change, RequestChange, SettingChange, Unit, apply_changes
from alignup.align.explain.remedies import requested_amounts
from alignup.align.host import Host
from alignup.align.quantity import Quantity
from alignup.align.settings import Policy, Scope
from alignup.align.workload import Pod
from alignup.picture.text_format import clean
from alignup.web.pages.html import Content, Html, element
from alignup.web.pages.page import section

AMOUNT = "amount-"  #: the fields of amounts: this, and their position among all of the pod
_MAX_AMOUNTS = 64


class Asked(NamedTuple):
    changes: tuple[Change, ...] = ()
    problems: tuple[str, ...] = ()  #: fields that cannot be read


def with_room_of(host: Host, pod: Pod) -> Host:
    """The host without *pod*: what it holds is free for it."""
    other = copy(host)
    other.release(pod.uid)
    return other


def read_changes(host: Host, pod: Pod, fields: Mapping[str, str]) -> Asked:
    """The changes that the fields of the form ask for."""
    found: list[Change] = []
    problems: list[str] = []
    policy, scope = effective_policy(pod, host.rules)
    own = host.settings.pod_policy_annotations
    names = (changes.OWN_POLICY, changes.OWN_SCOPE) if own else (changes.POLICY, changes.SCOPE)
    for name, field, was, known in (
        ("policy", names[0], str(policy), set(Policy)),
        ("scope", names[1], str(scope), set(Scope)),
    ):
        chosen = fields.get(name, was)
        if chosen not in known:
            problems.append(f"There is no {name} {chosen}.")
        elif chosen != was:
            found.append(SettingChange(field, was, chosen))
    for number, one in enumerate(_amounts(host, pod)):
        text = fields.get(f"{AMOUNT}{number}", "").strip()
        if not text:
            continue
        try:
            quantity = Quantity.parse(text)
        except ParseError as error:
            problems.append(f"{one.resource} of {one.subject}: {error}")
            continue
        now = quantity.milli() if one.unit is Unit.MILLI_CPUS else quantity.value()
        if now < 0:
            problems.append(f"{one.resource} of {one.subject}: must not be negative")
        elif now != one.was:
            found.append(replace(one, now=now))
    return Asked(tuple(found), tuple(problems))


def decide_changed(host: Host, pod: Pod, asked: Asked) -> tuple[Decision | None, str]:
    """The decision with the changes, or why there is none."""
    try:
        changed_host, changed_pod = apply_changes(asked.changes, host, pod)
        return changed_host.decide_without_plugins(changed_pod).without_ledgers(), ""
    except (PodError, AlignError) as error:
        return None, str(error)


def what_if_section(host: Host, pod: Pod, fields: Mapping[str, str], *, action: str) -> Content:
    """The form, and the answer if it was sent."""
    asked = read_changes(host, pod, fields)
    answer: list[Content] = [element("p", one, class_="banner", role="alert") for one in asked.problems]
    if fields and not asked.problems:
        answer.append(_answer(host, pod, asked))
    return section("What if?", _form(host, pod, fields, action=action), answer, id_="what-if")


def _answer(host: Host, pod: Pod, asked: Asked) -> Html:
    decision, problem = decide_changed(host, pod, asked)
    sentence = ", and ".join(one.describe(host.ledger) for one in asked.changes) or "nothing changes"
    body: Content = element("p", problem, class_="banner", role="alert")
    if decision is not None:
        body = decision_body(decision, prefix="what-if-")
    return element("div", element("h3", f"What if: {clean(sentence)}"), body, class_="answer", role="status")


def _form(host: Host, pod: Pod, fields: Mapping[str, str], *, action: str) -> Html:
    policy, scope = effective_policy(pod, host.rules)
    inputs = [
        _select("Policy", "policy", [str(one) for one in Policy], fields.get("policy", str(policy))),
        _select("Scope", "scope", [str(one) for one in Scope], fields.get("scope", str(scope))),
    ]
    for number, one in enumerate(_amounts(host, pod)):
        name = f"{AMOUNT}{number}"
        label = f"{clean(one.resource)} of {clean(one.subject)}"
        value = fields.get(name, str(one.unit.quantity(one.was)))
        field = element("input", id=name, name=name, value=value, maxlength=40, autocomplete="off")
        inputs.append(element("p", element("label", label, for_=name), field, class_="field"))
    hint = element("p", "Nothing changes on the node: the answer is a prediction for now.", class_="empty")
    button = element("p", element("button", "Decide", type="submit"), class_="field")
    return element("form", inputs, button, hint, method="get", action=action, class_="what-if")


def _select(label: str, name: str, values: list[str], selected: str) -> Html:
    options = [element("option", one, value=one, selected=one == selected) for one in values]
    return element(
        "p", element("label", label, for_=name), element("select", options, id=name, name=name), class_="field"
    )


def _amounts(host: Host, pod: Pod) -> list[RequestChange]:
    return list(requested_amounts(host, pod))[:_MAX_AMOUNTS]
