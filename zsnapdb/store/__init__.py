"""Object stores behind one protocol: S3, Azure, Google and a local folder."""
