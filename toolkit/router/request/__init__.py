"""PURE: what a client asks, what each engine is asked instead, and what of an answer is the client's."""
