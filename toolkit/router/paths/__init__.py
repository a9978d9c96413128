"""PURE: which way a turn takes through the engines, by what the ways were measured to cost."""
