"""Environment variables that give each machine of a distributed trial its place.

`remote.fleet.gang` sets them, `bench.kinds.distributed.machines` reads them.
"""

NODE_COUNT, NODE_RANK = "QLORA_FLEET_NODES", "QLORA_FLEET_NODE_RANK"
NODE_ADDRESS, NODE_PORT, NODE_TOKEN = "QLORA_FLEET_RANK0_ADDRESS", "QLORA_FLEET_RANK0_PORT", "QLORA_FLEET_GANG"
