"""A Kubernetes whose pods are processes of this machine, so that Ray's own autoscaler for KubeRay scales a RayCluster.

The API has the requests that the autoscaler makes (Ray 2.60, autoscaler/_private/kuberay/node_provider.py). Pods are
made, named to Ray and ended as by KubeRay (1.7.0, ray-operator/controllers/ray/raycluster_controller.go,
common/pod.go) and the kubelet, which runs preStop hooks.
"""

from __future__ import annotations

import copy
import json
import os
import shlex
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cluster import IMAGE_FOLDER
from cluster.local import free_ports
from ray_head import RAY, Head

Tree = dict[str, Any]
HEAD = "head-pod"
STORE = "--object-store-memory=100000000"
STANDARD = {"CPU": "num-cpus", "GPU": "num-gpus", "memory": "memory"}


@dataclass
class Pod:
    """A worker's pod. It is pending until it has a process."""

    name: str
    group: str
    address: str
    process: subprocess.Popen[bytes] | None = None
    deleted: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class LocalKubeRay:
    """A RayCluster whose head runs, with the autoscaler and the operator.

    `room`: whether Kubernetes has room for more pods; without it, new pods stay pending. `asked`: the numbers of
    replicas that the autoscaler asked for, a pair (group, number) each.
    """

    def __init__(self, cluster: Tree, *, repository: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self.cluster = copy.deepcopy(cluster)
        self.name, self.namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        self.room = True
        self.asked: list[tuple[str, int]] = []
        self.pods: dict[str, Pod] = {}
        self._repository, self._variables = repository, dict(variables)
        self._lock = threading.RLock()
        self._made = 0
        self._closed = threading.Event()
        self.head = Head(repository, words=[*self._head_words(), STORE], variables=self._head_variables())
        self.address = f"127.0.0.1:{self.head.port}"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        certificate, key = write_certificate(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        for work in (self._server.serve_forever, self._operate):
            threading.Thread(target=work, daemon=True).start()
        self.log = folder / "autoscaler.log"
        self._start_autoscaler(certificate, key)

    def _spec(self) -> Tree:
        spec: Tree = self.cluster["spec"]
        return spec

    def _head_words(self) -> list[str]:
        parameters = self._spec()["headGroupSpec"]["rayStartParams"]
        kept = {name: value for name, value in parameters.items() if name in ("num-cpus", "resources")}
        words = shlex.split(" ".join(f"--{name}={value}" for name, value in kept.items()))
        return [*words, "--no-monitor", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]

    def _head_variables(self) -> dict[str, str]:
        return self._variables | {
            "RAY_AUTH_MODE": self._spec().get("authOptions", {}).get("mode", "disabled"),
            "RAY_enable_autoscaler_v2": str(int(self._spec()["autoscalerOptions"].get("version") == "v2")),
            "RAY_CLOUD_INSTANCE_ID": HEAD,
            "RAY_NODE_TYPE_NAME": "headgroup",
        }

    def _start_autoscaler(self, certificate: Path, key: Path) -> None:
        options = {each["name"]: each["value"] for each in self._spec()["autoscalerOptions"]["env"]}
        (metrics,) = free_ports(1)
        variables = {
            "RAY_CLUSTER_NAME": self.name,
            "RAY_CLUSTER_NAMESPACE": self.namespace,
            "RAY_HEAD_POD_NAME": HEAD,
            "KUBERAY_CRD_VER": "v1",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS": str(self._server.server_port),
            "RAY_KUBERAY_CA_CERT_PATH": str(certificate),
            "RAY_KUBERAY_CLIENT_CERT_PATH": str(certificate),
            "RAY_KUBERAY_CLIENT_KEY_PATH": str(key),
            "AUTOSCALER_METRIC_PORT": str(metrics),
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "PATH": f"{Path(RAY).parent}{os.pathsep}{os.environ['PATH']}",
        }
        words = [f"--cluster-name={self.name}", f"--cluster-namespace={self.namespace}"]
        with open(self.log, "wb") as log:
            self.autoscaler = subprocess.Popen(
                [RAY, "kuberay-autoscaler", *words, f"--gcs-address={self.address}"],
                env=self.head.environment | variables | options,
                cwd=self._repository,
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        """End all that runs."""
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self.head.close()
        self.autoscaler.wait()

    # What the operator does.

    def _operate(self) -> None:
        while not self._closed.wait(0.2):
            with self._lock:
                for index in range(len(self._spec()["workerGroupSpecs"])):
                    self._reconcile(self._spec()["workerGroupSpecs"][index])

    def _reconcile(self, group: Tree) -> None:
        name = group["groupName"]
        for each in group.get("scaleStrategy", {}).get("workersToDelete", ()):
            if each in self.pods and not self.pods[each].deleted:
                self.delete(each)
        for pod in [pod for pod in self.pods.values() if pod.group == name]:
            ran_out = pod.process is not None and pod.process.poll() is not None
            if pod.ended.is_set() or (ran_out and not pod.deleted):  # restartPolicy Never: the operator removes it
                del self.pods[pod.name]
        mine = [pod for pod in self.pods.values() if pod.group == name and not pod.deleted]
        for _ in range(group["replicas"] - len(mine)):
            self._made += 1
            made = Pod(f"{self.name}-{name}-worker-{self._made}", name, f"127.0.0.{self._made + 1}")
            self.pods[made.name] = made
        for pod in self.pods.values():
            if self.room and pod.group == name and pod.process is None and not pod.deleted:
                pod.process = self._run(pod, group)

    def _run(self, pod: Pod, group: Tree) -> subprocess.Popen[bytes]:
        """Start Ray as KubeRay does (generateRayStartCommand, updateRayStartParamsResources), with an address of its
        own, and ports that others on this machine do not have."""
        parameters = {STANDARD[name]: value for name, value in group["resources"].items() if name in STANDARD}
        others = {name: float(value) for name, value in group["resources"].items() if name not in STANDARD}
        agent, metrics = free_ports(2)
        words = [
            *(RAY, "start", "--block", f"--address={self.address}", f"--node-ip-address={pod.address}", STORE),
            *(f"--{name}={value}" for name, value in parameters.items()),
            f"--resources={json.dumps(others)}",
            *(f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"),
        ]
        with open(self.head.folder / f"{pod.name}.log", "wb") as log:
            return subprocess.Popen(
                words, env=self._pod_variables(pod, group), cwd=self._repository, stdout=log, stderr=log
            )

    def _pod_variables(self, pod: Pod, group: Tree) -> dict[str, str]:
        container = group["template"]["spec"]["containers"][0]
        return {
            **{key: value for key, value in self.head.environment.items() if key != "RAY_enable_autoscaler_v2"},
            **{each["name"]: each["value"] for each in container["env"]},
            "RAY_CLOUD_INSTANCE_ID": pod.name,
            "RAY_NODE_TYPE_NAME": pod.group,
            "RAY_ADDRESS": self.address,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def delete(self, name: str, *, node: str | None = None) -> threading.Event:
        """Delete a pod: it counts no longer, and ends after its preStop hook. The event says that it has ended.

        `node`: Ray's id of it, which the hook cannot find out itself where all pods are on one machine.
        """
        with self._lock:
            pod = self.pods[name]
            pod.deleted = True
        threading.Thread(target=self._end, args=(pod, node), daemon=True).start()
        return pod.ended

    def _end(self, pod: Pod, node: str | None) -> None:
        """As the kubelet: a container that has ended already gets no hook."""
        (group,) = [each for each in self._spec()["workerGroupSpecs"] if each["groupName"] == pod.group]
        spec = group["template"]["spec"]
        process = pod.process
        deadline = time.monotonic() + spec["terminationGracePeriodSeconds"]
        if process is not None and process.poll() is None and node is not None:
            hook = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
            words = [*hook[:-1], f"{hook[-1].replace(IMAGE_FOLDER, str(self._repository))} --node-id={node}"]
            subprocess.run(words, env=self._pod_variables(pod, group), timeout=deadline - time.monotonic(), check=True)
        if process is not None:
            process.terminate()
            try:
                process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        pod.ended.set()

    # What the API server answers.

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(api.get(urlsplit(self.path).path))

            def do_PATCH(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(api.patch(urlsplit(self.path).path, json.loads(body)))

            def _answer(self, tree: Tree | None) -> None:
                body = json.dumps(tree or {}).encode()
                self.send_response(200 if tree is not None else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Say nothing of each request."""

        return Handler

    def get(self, path: str) -> Tree | None:
        """Answer a GET; None is 404."""
        with self._lock:
            pods = f"/api/v1/namespaces/{self.namespace}/pods"
            if path == f"/apis/ray.io/v1/namespaces/{self.namespace}/rayclusters/{self.name}":
                return copy.deepcopy(self.cluster)
            if path == f"{pods}/{HEAD}":
                return self._describe(HEAD, "head", "headgroup", running=True)
            if path == pods:
                items = [self._describe(HEAD, "head", "headgroup", running=True)]
                for pod in self.pods.values():
                    item = self._describe(pod.name, "worker", pod.group, running=pod.process is not None)
                    item["metadata"] |= {"deletionTimestamp": "now"} if pod.deleted else {}
                    items.append(item)
                return {"metadata": {"resourceVersion": "1"}, "items": items}
            return None

    def _describe(self, name: str, kind: str, group: str, *, running: bool) -> Tree:
        labels = {"ray.io/node-type": kind, "ray.io/group": group, "ray.io/cluster": self.name}
        state = {"running": {}} if running else {"waiting": {}}
        return {
            "metadata": {"name": name, "labels": labels, "resourceVersion": "1"},
            "status": {"containerStatuses": [{"state": state}]},
        }

    def patch(self, path: str, operations: list[Tree]) -> Tree | None:
        """Answer a JSON patch of the RayCluster; None is 404."""
        if self.get(path) is None:
            return None
        with self._lock:
            for each in operations:
                assert each["op"] == "replace", each
                *place, last = each["path"].strip("/").split("/")
                inner: Any = self.cluster
                for part in place:
                    inner = inner[int(part)] if isinstance(inner, list) else inner[part]
                inner[last] = each["value"]
                if last == "replicas":
                    self.asked.append((inner["groupName"], each["value"]))
            return copy.deepcopy(self.cluster)


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key, and return their files. It also signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "api.crt", folder / "api.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return files
