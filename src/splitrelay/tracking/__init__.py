"""Copy the rows of runs to experiment trackers: TensorBoard, MLflow, Weights & Biases.

Rules:

- Tracking runs in a process of its own and only reads run directories. A tracker that is slow, full or broken cannot
  disturb a training, and simulated, deployed, running, finished and published runs are all tracked in the same way.
- A value is written once. A tracker says which rounds it has, and only later rows are written. The position is kept
  with the tracker's data and not in the run directory, so it is right even if the data are deleted or the process is
  killed.
- The packages of the trackers are optional. They are imported when their tracker is used.
"""
