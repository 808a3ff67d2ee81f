"""What the clients minimise: quadratics with every answer exact, and networks on images."""
