"""Virtual machines of this host: libvirt (`hypervisor.py`) and images (`images.py`)."""
