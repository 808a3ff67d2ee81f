"""The Python interface: train any model on any data in a few lines. `import splitrelay as sr` provides its names."""
