"""Code that several tests share: small data sets, key folders, servers, deployments, programs, pages."""
