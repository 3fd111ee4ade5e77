"""Plays the kubelets of a few simulated nodes: runs the pods bound to them as processes of this machine.

It speaks the public Kubernetes API and nothing else, so it works against any API server. From the outside in:

    agent        the process: state directory, order of start and stop
    kubelet      one node: registration, lease, its pods
    pod          one pod's life;  container: one container's
    runner       starts commands;  sandbox: runs between it and the command, in the new namespaces
    endpoint     logs and exec for the API server: execution, channels (spdy; WebSocket by wsproto), logs
    serving      the endpoint's certificate, and its access rules
    forward      NodePorts;  provision: claims;  recorder: events;  addresses, probes, volumes, image
    gpu_metrics  what pretended GPUs do, for a Prometheus
    facts        what the environment refers to
    pure         status, env, quantities, devices, description, spdy
"""

from dlspawner.devcluster.node.agent import Agent, CannotStart
from dlspawner.devcluster.node.container import Backoff
from dlspawner.devcluster.node.machine.description import DEFAULT, NodeDescription

__all__ = ["DEFAULT", "Agent", "Backoff", "CannotStart", "NodeDescription"]
