"""Write a table of patients (the breast cancer data of scikit-learn) and train over a cut with three wards."""

import csv
from pathlib import Path

from sklearn.datasets import load_breast_cancer

from splitrelay.runs.build import resolve_spec
from splitrelay.runs.execute import build_trainer
from splitrelay.runs.spec import make_spec

WARDS = ("north", "south", "east")


def write_patients(path: Path) -> Path:
    """Write one row per patient: 30 measurements, the ward and the diagnosis."""
    source = load_breast_cancer()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(name.replace(" ", "_") for name in source.feature_names), "ward", "diagnosis"])
        for number, (row, kind) in enumerate(zip(source.data.tolist(), source.target.tolist(), strict=True)):
            writer.writerow([*row, WARDS[number % 3], source.target_names[kind]])
    return path


if __name__ == "__main__":
    table = write_patients(Path("patients.csv"))
    settings = make_spec(data=str(table), label="diagnosis", client="ward", model="mlp", metrics="auroc", eta=0.05)
    spec, _ = resolve_spec(settings)
    trainer, partition = build_trainer(spec)
    print(f"{partition.M} wards with {', '.join(map(str, partition.sizes))} patients")
    for row, _ in trainer.run(R=4):
        print(f"round {row.r}: AUROC {row.score.metrics['auroc']:.3f}, accuracy {row.score.accuracy:.0%}")
