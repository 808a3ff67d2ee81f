"""The paper's symbols beside our names: the single source for help texts, docs and axis labels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Symbol:
    """One row: the paper's symbol (as TeX), our name for it, what it is, in what unit, and the paper's table."""

    tex: str
    plain: str
    name: str
    meaning: str
    unit: str = ""
    table: str = "theory"


KEY_SYMBOLS = (
    Symbol("R", "R", "R", "number of training rounds (index r)", "rounds"),
    Symbol("M", "M", "M", "number of clients (index m)", "clients"),
    Symbol("K", "K", "K", "number of local steps of a visit (index k)", "steps"),
    Symbol(r"\pi", "π", "order", "the order in which the clients of a round train"),
    Symbol("S", "S", "S", "number of clients that take part in a round", "clients"),
    Symbol(r"\eta", "η", "eta", "learning rate of one local step"),
    Symbol(r"\tilde\eta", "η̃", "eta_tilde", "effective learning rate: M K eta in SSL, K eta in FedAvg"),
    Symbol(r"\mu", "μ", "mu", "strong convexity of F and of every F_m (their mean is enough)"),
    Symbol("L", "L", "L", "smoothness of every F_m (the largest of them)"),
    Symbol(r"\sigma", "σ", "sigma", "bound on the deviation of a stochastic gradient; sigma2 is its square"),
    Symbol(r"B, \zeta", "B, ζ", "B, zeta", "bounds on heterogeneity everywhere; B2 and zeta2 are their squares"),
    Symbol(r"\zeta_*", "ζ*", "zeta_star", "heterogeneity at the optimum; its square is the convex cases' zeta2"),
    Symbol("F / F_m", "F / F_m", "F, F_m", "the mean of all clients' objectives / the objective of client m"),
    Symbol("x^r", "x^r", "x", "the model at the start of round r, one flat vector [bottom; top]"),
    Symbol(r"x_m^{(r,k)}", "x_m^(r,k)", "visit.x", "the model after k local steps with the m-th client of round r"),
    Symbol(
        r"g_{\pi_m}^{(r,k)}", "g_π_m^(r,k)", "gradient(m, x, xi)", "stochastic gradient of F_m at x on the sample xi"
    ),
    Symbol(r"\mathrm{ExDir}(C,\alpha)", "ExDir(C, α)", "exdir", "partition: C classes a client, then Dirichlet(alpha)"),
)

CUT_SYMBOLS = (
    Symbol(r"\tau_m", "τ_m", "tau_m", "number of local steps with client m, where clients differ", "steps", "cut"),
    Symbol(r"x_c", "x_c", "bottom", "the client's half of x: its prefix, up to the cut", "", "cut"),
    Symbol(r"x_s", "x_s", "top", "the server's half of x: the rest", "", "cut"),
    Symbol(r"X_m", "X_m", "features", "a batch of features; never leaves the client", "", "cut"),
    Symbol(r"Y_m", "Y_m", "labels", "the labels of that batch; sent to the server", "", "cut"),
    Symbol(r"\hat Y_m", "Ŷ_m", "predictions", "what the server's half makes of the smashed data", "", "cut"),
    Symbol(r"A_m", "A_m", "h", "smashed data: the activation of the cut layer", "", "cut"),
    Symbol(r"\ell_{\pi_m}", "ℓ_π_m", "loss", "the loss function with client m", "", "cut"),
    Symbol(r"\nabla\ell(x_s; A)", "∇ℓ(x_s; A)", "top gradient", "gradient of the loss in the server's half", "", "cut"),
    Symbol(
        r"\nabla\ell(A; x_s)", "∇ℓ(A; x_s)", "gradient at the cut", "what the server returns to the client", "", "cut"
    ),
    Symbol(
        r"\nabla\ell(x_c; X)", "∇ℓ(x_c; X)", "bottom gradient", "gradient of the loss in the client's half", "", "cut"
    ),
)

OUR_SYMBOLS = (
    Symbol("D^2", "D²", "D2", "squared distance from the start to the optimum", "", "ours"),
    Symbol("A", "A", "A", "gap at the start: F(x0) - F*", "", "ours"),
    Symbol(r"\sigma_*", "σ*", "sigma_star", "deviation of stochastic gradients at the optimum", "", "ours"),
    Symbol(r"\delta", "δ", "delta", "distance of the mean of local optima from the optimum", "", "ours"),
    Symbol(r"c_H", "c_H", "c_H", "mean of H_m grad F_m(x*): FedAvg's bias for small steps", "", "ours"),
    Symbol(r"\kappa", "κ", "kappa", "condition number L / mu", "", "ours"),
    Symbol(r"\gamma", "γ", "gamma", "global step: x + gamma (result of the round - x)", "", "ours"),
    Symbol("w_r", "w_r", "w_r", "weight of x^r in the averaged output", "", "ours"),
    Symbol(r"\xi", "ξ", "xi", "a minibatch", "", "ours"),
)

SYMBOLS = KEY_SYMBOLS + CUT_SYMBOLS + OUR_SYMBOLS


def axis(name: str) -> str:
    """The label of an axis that shows this quantity: the paper's symbol, in TeX."""
    for symbol in SYMBOLS:
        if symbol.name == name:
            return f"${symbol.tex}$"
    return name


def meaning(name: str) -> str:
    """What a quantity is, in a few words."""
    return next(symbol.meaning for symbol in SYMBOLS if symbol.name == name)
