"""What is wrong with a cluster or a node: pure functions from what was read to findings."""
