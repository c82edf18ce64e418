"""Stateful stand-ins for the payment providers, for development and tests; never with real keys."""
