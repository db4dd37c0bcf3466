"""What can be asked about clones and the protection of instances, each thing declared once.

The routes of the API, the words of `zsnapdb-clone` and of the helper, the roles and the clients follow from it.
"""
