"""The lab: real OpenZFS, MySQL and MariaDB in User Mode Linux guests.

Standard library only. A machine needs python3, root and apt; everything else is
built once into a cache folder (see `build`) and booted as ordinary processes
(see `guest`).
"""
