"""How the machines of a distributed trial are told their places: set by `remote.fleet.gang`, read by
`bench.kinds.distributed.machines`."""

NODE_COUNT, NODE_RANK = "QLORA_FLEET_NODES", "QLORA_FLEET_NODE_RANK"
NODE_ADDRESS, NODE_PORT, NODE_TOKEN = "QLORA_FLEET_RANK0_ADDRESS", "QLORA_FLEET_RANK0_PORT", "QLORA_FLEET_GANG"
