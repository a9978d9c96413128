"""Fakes we ship: stand-ins for engines and machines, for our tests and for those of our users."""
