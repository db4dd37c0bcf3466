"""Object stores behind one protocol: S3 and a local folder."""
