"""Our checks: what would go wrong with a planned cluster, said before anything is made. Pure.

settings + plan + configuration + facts -> Problems. The table of all of them is docs/checks.md.
"""
