"""Sets up a host: finds a server, configures its protection, moves its files and verifies the result.

Also removes the configuration.
"""
