"""Node provider for `ray up` on AWS that takes on-demand machines while EC2 has no spot machines.

Ray 2.60 does not do this by itself: after a failed launch its autoscaler asks for the same type of node again. It puts
a type behind others only after an allocation timeout, not when EC2 refuses
(autoscaler/v2/instance_manager/subscribers/cloud_resource_monitor.py; ALLOCATION_FAILED in reconciler.py beside it).
So the fall-back is here, in the request itself, and the number of nodes stays bounded. Ray loads this class by its
name in spot.yaml; `ray up` needs the repository on PYTHONPATH for that, and the head's start command sets it.
"""

from __future__ import annotations

import logging
from typing import Any

from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException

logger = logging.getLogger(__name__)

NO_SPOT = frozenset(
    {
        "InsufficientCapacity",
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "SpotMaxPriceTooLow",
        "UnfulfillableCapacity",
    }
)
"""Codes with which EC2 says that it has no spot machines for this account now (Amazon EC2 API Reference, "Error codes
for the Amazon EC2 API"; AWS's own scheduler fails over on these too: aws-parallelcluster-node, pull request 673,
src/slurm_plugin/slurm_resources.py, EC2_ICE_ERROR_CODES)."""


class SpotOrOnDemand(AWSNodeProvider):  # type: ignore[misc]
    """Ray's provider for AWS, which asks for on-demand machines if EC2 refuses spot machines for want of them."""

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> Any:
        """Start up to `count` machines by `node_config` (parameters of RunInstances), and return what EC2 says about
        them. Raises Ray's NodeLaunchException if EC2 has none of either kind, or refuses for another reason."""
        try:
            return super().create_node(node_config, tags, count)
        except NodeLaunchException as error:
            market = node_config.get("InstanceMarketOptions", {}).get("MarketType")
            if market != "spot" or error.category not in NO_SPOT:
                raise
            logger.warning("EC2 has no spot machines (%s): taking on-demand machines, which cost more", error.category)
        on_demand = {key: value for key, value in node_config.items() if key != "InstanceMarketOptions"}
        return super().create_node(on_demand, tags, count)
