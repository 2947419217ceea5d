"""The objects in deploy/kubernetes/gate fit what the code serves and reads."""

from pathlib import Path

import yaml

from alignup.cli import webhook_certificates
from alignup.kubernetes.api import PODS
from alignup.kubernetes.api.resource import WORKLOADS
from alignup.schedule.gate.admission import LABEL, OPT_IN, OPT_OUT
from alignup.schedule.gate.marker_admission import DO_NOT_STEER, STEER, STEER_LABEL
from alignup.schedule.gate.service import STEER_PATH, WARN_PATH, WEBHOOK_PATH, WebhookOptions

DIRECTORY = Path(__file__).parents[3] / "deploy" / "kubernetes" / "gate"
OPTIONS = WebhookOptions(listen=("", 8443), namespace="alignup")
INSTALLED = {option.name: option.default for option in webhook_certificates.command.params}


def objects(name):
    return {obj["kind"]: obj for obj in yaml.safe_load_all((DIRECTORY / name).read_text("utf-8"))}


def expression(operator, value, key=LABEL):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}


def test_the_service_of_the_webhook_leads_to_every_replica():
    service = objects("webhook.yaml")["Service"]

    assert service["metadata"]["name"] == OPTIONS.service
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["ports"][0]["targetPort"] == OPTIONS.listen[1]


def test_each_new_pod_that_opted_in_is_asked_about_once():
    configuration = objects("webhook.yaml")["MutatingWebhookConfiguration"]
    webhooks = configuration["webhooks"]

    assert configuration["metadata"]["name"] == INSTALLED["configuration"]
    for webhook, path in zip(webhooks, (WEBHOOK_PATH, WEBHOOK_PATH, STEER_PATH, STEER_PATH), strict=True):
        service = {"name": OPTIONS.service, "namespace": OPTIONS.namespace, "path": path}
        assert webhook["clientConfig"] == {"service": service}
        assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["admissionReviewVersions"]) == (
            "Ignore",
            "None",
            ["v1"],
        )
        assert webhook["rules"][0]["operations"] == ["CREATE"]
    assert [(webhook["namespaceSelector"], webhook["objectSelector"]) for webhook in webhooks] == [
        (expression("In", OPT_IN), expression("NotIn", OPT_OUT)),
        (expression("NotIn", OPT_IN), expression("In", OPT_IN)),
        (expression("In", STEER, STEER_LABEL), expression("NotIn", DO_NOT_STEER, STEER_LABEL)),
        (expression("NotIn", STEER, STEER_LABEL), expression("In", STEER, STEER_LABEL)),
    ]


def test_the_webhook_that_warns_never_keeps_a_request_for_long():
    (configuration,) = yaml.safe_load_all((DIRECTORY.parent / "warnings" / "webhook.yaml").read_text("utf-8"))
    (webhook,) = configuration["webhooks"]

    assert configuration["metadata"]["name"] == INSTALLED["warning_configuration"]
    service = {"name": OPTIONS.service, "namespace": OPTIONS.namespace, "path": WARN_PATH}
    assert webhook["clientConfig"] == {"service": service}
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 1, "None")
    reviewed = {resource for rule in webhook["rules"] for resource in rule["resources"]}
    assert reviewed == {PODS.plural, *(resource.plural for resource in WORKLOADS.values())}


def named_objects(name):
    """Return the names of objects that roles in a file are limited to, by resource."""
    roles = [obj for obj in yaml.safe_load_all((DIRECTORY / name).read_text("utf-8")) if obj["kind"].endswith("Role")]
    rules = [rule for role in roles for rule in role["rules"] if "resourceNames" in rule]
    return {resource: rule["resourceNames"] for rule in rules for resource in rule["resources"]}


def test_permissions_name_the_objects_that_are_used():
    assert (INSTALLED["service"], INSTALLED["secret"]) == (OPTIONS.service, OPTIONS.secret)
    assert named_objects("access.yaml") == {"secrets": [OPTIONS.secret]}
    assert named_objects("certificates.yaml") == {
        "secrets": [OPTIONS.secret],
        "mutatingwebhookconfigurations": [INSTALLED["configuration"]],
        "validatingwebhookconfigurations": [INSTALLED["warning_configuration"]],
    }
