"""Schemas of the custom resources that the chart renders, as far as it uses them, from their API references.

Unknown keys are errors: a misspelt field of a custom resource is otherwise pruned in silence by the API server.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
STRING: Schema = {"type": "string", "minLength": 1}
STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(h|m|s|ms))+$"}
ANY: Schema = {"type": "object"}


def struct(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(required),
        "properties": required | (optional or {}),
    }


def array(items: Schema, least: int = 1, most: int = 100) -> Schema:
    """A list of items."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def resource(spec: Schema) -> Schema:
    """A whole object with that spec."""
    metadata = struct({"name": STRING, "namespace": STRING, "labels": STRINGS}, {"annotations": STRINGS})
    return struct({"apiVersion": STRING, "kind": STRING, "metadata": metadata, "spec": spec})


LABEL_SELECTOR = struct({"matchLabels": STRINGS})
ENDPOINT = struct(
    {"port": STRING, "path": STRING, "interval": DURATION, "scrapeTimeout": DURATION},
    {"relabelings": array(ANY), "metricRelabelings": array(ANY)},
)
MONITOR = {"selector": LABEL_SELECTOR, "namespaceSelector": struct({"matchNames": array(STRING)})}
SCHEMAS: dict[str, Schema] = {
    "ServiceMonitor": resource(struct(MONITOR | {"endpoints": array(ENDPOINT)}, {"podTargetLabels": array(STRING)})),
    "PrometheusRule": resource(
        struct(
            {
                "groups": array(
                    struct(
                        {
                            "name": STRING,
                            "rules": array(
                                struct(
                                    {"expr": STRING},
                                    {
                                        "alert": STRING,
                                        "record": STRING,
                                        "for": DURATION,
                                        "keep_firing_for": DURATION,
                                        "labels": STRINGS,
                                        "annotations": STRINGS,
                                    },
                                ),
                                least=0,
                            ),
                        },
                        {"interval": DURATION},
                    )
                )
            }
        )
    ),
    "ScaledObject": resource(
        struct(
            {
                "scaleTargetRef": struct({"name": STRING}, {"apiVersion": STRING, "kind": STRING}),
                "minReplicaCount": {"type": "integer", "minimum": 0},
                "maxReplicaCount": {"type": "integer", "minimum": 1},
                "triggers": array(
                    struct(
                        {"type": STRING, "metadata": STRINGS},
                        {"name": STRING, "metricType": {"enum": ["AverageValue", "Value", "Utilization"]}},
                    )
                ),
            },
            {
                "pollingInterval": {"type": "integer"},
                "cooldownPeriod": {"type": "integer"},
                "fallback": struct({"failureThreshold": {"type": "integer"}, "replicas": {"type": "integer"}}),
                "advanced": struct({"horizontalPodAutoscalerConfig": struct({"behavior": ANY})}),
            },
        )
    ),
    "Certificate": resource(
        struct(
            {
                "secretName": STRING,
                "issuerRef": struct({"name": STRING}, {"kind": STRING, "group": STRING}),
                "dnsNames": array(STRING),
            },
            {
                "duration": DURATION,
                "renewBefore": DURATION,
                "usages": array({"enum": ["server auth", "client auth"]}),
                "privateKey": struct(
                    {"algorithm": {"enum": ["RSA", "ECDSA", "Ed25519"]}, "size": {"enum": [256, 384, 521]}},
                    {"rotationPolicy": {"enum": ["Always", "Never"]}},
                ),
            },
        )
    ),
}
