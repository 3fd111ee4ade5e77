"""``dlspawner simulate``: replays a trace with the product's own decisions, to see what a policy costs and brings."""
