"""Where theory, algorithms and clients meet: registries, studies, figures."""
