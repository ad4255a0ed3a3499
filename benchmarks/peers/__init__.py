"""weir and other engines on the same weights and the same work, in turn.

The runners (run_*.py, child.py) are imported by other environments' interpreters, from the folder above: they import
nothing of this repository but each other, and that relatively. run_weir.py alone imports weir.
"""
