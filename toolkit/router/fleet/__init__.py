"""The engines behind the router and who may use it: legs, health, members, leases, places, keys, TLS."""
