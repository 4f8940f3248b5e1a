"""Files for Kubernetes beside the clusters: who may connect to the pods, and where Prometheus finds their metrics."""

from __future__ import annotations

from typing import Any

from cluster.render.kuberay import PART_OF
from cluster.render.values import KubernetesValues

Tree = dict[str, Any]

OPERATOR = {"app.kubernetes.io/component": "kuberay-operator"}
"""Labels of KubeRay's operator (1.6 and 1.7, helm-chart/kuberay-operator and ray-operator/config/manager). It asks the
dashboard for the state of jobs."""
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
"""Labels that the Prometheus Operator gives to its servers, and that the chart of Prometheus uses too."""


def render_network_policy(values: KubernetesValues) -> Tree:
    """Return a NetworkPolicy: only the pods of our own clusters in the namespace connect to each other on all ports.
    Besides, the operator reaches the dashboard and Prometheus the metrics. A tunnel of `kubectl port-forward` works
    too, because it ends inside the pod. Connections from the pods to elsewhere stay open, as to an object store."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": values.name, "namespace": values.namespace},
        "spec": {
            "podSelector": {"matchLabels": {PART_OF: values.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": {PART_OF: values.name}}}]},
                allow_from_anywhere(OPERATOR, port=8265),
                allow_from_anywhere(PROMETHEUS, port=8080),
            ],
        },
    }


def allow_from_anywhere(labels: dict[str, str], *, port: int) -> Tree:
    """Return a rule that lets pods with the labels `labels`, in any namespace, connect to a port."""
    source = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(labels)}}
    return {"from": [source], "ports": [{"protocol": "TCP", "port": port}]}


def render_pod_monitor(values: KubernetesValues) -> Tree:
    """Return a PodMonitor, by which the Prometheus Operator collects the metrics of all Ray pods of our clusters.

    Port and relabeling are those of KubeRay's example (1.7.0, config/prometheus/podMonitor.yaml).
    """
    metadata: Tree = {"name": values.name, "namespace": values.namespace}
    if values.monitor_labels:
        metadata["labels"] = dict(values.monitor_labels)
    relabeling = {"sourceLabels": ["__meta_kubernetes_pod_label_ray_io_cluster"], "targetLabel": "ray_io_cluster"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": {PART_OF: values.name, "ray.io/is-ray-node": "yes"}},
            "podMetricsEndpoints": [{"port": "metrics", "relabelings": [relabeling]}],
        },
    }
