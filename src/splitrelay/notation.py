"""The symbols of the paper and our names for them. Help texts, docs and axis labels use this table."""

from __future__ import annotations

from dataclasses import dataclass

from splitrelay.errors import UnknownName


@dataclass(frozen=True)
class Symbol:
    """A symbol of the paper (as TeX and as plain text), our name, its meaning, its unit, and its table."""

    tex: str
    plain: str
    name: str
    meaning: str
    unit: str = ""
    table: str = "theory"


# All rows of the table of key notations, in the order of the paper. A row with two symbols is two rows here.
KEY_SYMBOLS = (
    Symbol("R", "R, r", "R", "number of training rounds; r is their index, from 0", "rounds"),
    Symbol("M", "M, m", "M", "number of clients; m is their index", "clients"),
    Symbol("K", "K, k", "K", "number of local steps of a visit; k is their index", "steps"),
    Symbol(r"\pi", "π", "order", "the clients of a round in the order in which they train: a permutation, or less"),
    Symbol("S", "S", "S", "number of clients that take part in a round", "clients"),
    Symbol(r"\eta", "η", "eta", "learning rate of one local step"),
    Symbol(r"\tilde\eta", "η̃", "eta_tilde", "effective learning rate: M K eta in SSL, K eta in FedAvg"),
    Symbol(r"\mu", "μ", "mu", "strong convexity of F and of every F_m (their mean is enough)"),
    Symbol("L", "L", "L", "smoothness of every F_m (the largest of them)"),
    Symbol(r"\sigma", "σ", "sigma", "bound on the deviation of a stochastic gradient; sigma2 is its square"),
    Symbol("B", "B", "B", "bound on heterogeneity everywhere, beside ||grad F||; B2 is its square"),
    Symbol(r"\zeta", "ζ", "zeta", "bound on heterogeneity everywhere, the constant part; zeta2 is its square"),
    Symbol(r"\zeta_*", "ζ*", "zeta_star", "heterogeneity at the optimum; its square is the convex cases' zeta2"),
    Symbol("F", "F", "F", "the global objective: the mean of all F_m"),
    Symbol("F_m", "F_m", "F_m", "the objective of client m"),
    Symbol("x^r", "x^r", "x", "the model at the start of round r, one flat vector [bottom; top]"),
    Symbol(r"x_m^{(r,k)}", "x_m^(r,k)", "x_m", "the model after k local steps with the m-th client of round r"),
    Symbol(
        r"g_{\pi_m}^{(r,k)}", "g_π_m^(r,k)", "gradient(m, x, xi)", "stochastic gradient of F_m at x, on the sample xi"
    ),
    Symbol(r"\mathrm{ExDir}(C,\alpha)", "ExDir(C, α)", "exdir", "partition: C classes a client, then Dirichlet(alpha)"),
)


def _cut(tex: str, plain: str, name: str, meaning: str, unit: str = "") -> Symbol:
    return Symbol(tex, plain, name, meaning, unit, "cut")


# All rows of the table of additional notations. Long symbols are given without round, client and step.
CUT_SYMBOLS = (
    _cut(r"\tau_m", "τ_m, k", "tau_m", "number of local steps with client m, where clients differ", "steps"),
    _cut("x_c", "x_c^r, x_c,m^(r,k)", "bottom", "the client's half of x^r, of x_m^(r,k): the prefix, up to the cut"),
    _cut("x_s", "x_s^r, x_s,m^(r,k)", "top", "the server's half of x^r, of x_m^(r,k): the rest"),
    _cut("X_m", "X_m", "features", "a batch of features; they never leave the client"),
    _cut("Y_m", "Y_m", "labels", "the labels of that batch; sent to the server"),
    _cut(r"\hat Y_m", "Ŷ_m", "predictions", "what the server's half makes of the smashed data"),
    _cut("A_m", "A_m", "h", "smashed data: the activation of the cut layer"),
    _cut(r"\ell_{\pi_m}", "ℓ_π_m", "loss", "the loss function with client m"),
    _cut(r"\nabla\ell(x_s; A)", "∇ℓ(x_s; A)", "top gradient", "gradient of the loss in the server's half"),
    _cut(r"\nabla\ell(A; x_s)", "∇ℓ(A; x_s)", "gradient at the cut", "what the server returns to the client"),
    _cut(r"\nabla\ell(x_c; X)", "∇ℓ(x_c; X)", "bottom gradient", "gradient of the loss in the client's half"),
)


def _ours(tex: str, plain: str, name: str, meaning: str) -> Symbol:
    return Symbol(tex, plain, name, meaning, "", "ours")


# Letters of the paper that are not in its tables, and a few of our own.
OUR_SYMBOLS = (
    _ours("x^0", "x^0", "x0", "the start"),
    _ours("x^*", "x*", "x_star", "the minimiser of F"),
    _ours("D^2", "D²", "D2", "squared distance from the start to the optimum"),
    _ours("A", "A", "A", "gap at the start: F(x0) - F*"),
    _ours(r"\sigma_*", "σ*", "sigma_star", "deviation of stochastic gradients at the optimum"),
    _ours(r"\delta", "δ", "delta", "distance of the mean of local optima from the optimum"),
    _ours("c_H", "c_H", "c_H", "mean of H_m grad F_m(x*): FedAvg's bias for small steps"),
    _ours(r"\tilde\eta^*", "η̃*", "eta_tilde_star", "on quadratics SSL beats FedAvg below it, to leading order"),
    _ours(r"\kappa", "κ", "kappa", "condition number L / mu"),
    _ours(r"\gamma", "γ", "gamma", "global step: x + gamma (result of the round - x)"),
    _ours("G", "G", "G", "number of groups in FedSeq"),
    _ours("w_r", "w_r", "w_r", "weight of x^r in the averaged output"),
    _ours(r"\xi", "ξ", "xi", "a minibatch"),
    _ours("C", "C", "C", "classes a client in ExDir(C, α)"),
    _ours(r"\alpha", "α", "alpha", "concentration in ExDir(C, α): small is uneven"),
)

SYMBOLS = KEY_SYMBOLS + CUT_SYMBOLS + OUR_SYMBOLS
BY_NAME = {symbol.name: symbol for symbol in SYMBOLS}


def get_axis_label(name: str) -> str:
    """Return the label of an axis: the symbol in TeX, or the name itself if it has no symbol."""
    return f"${BY_NAME[name].tex}$" if name in BY_NAME else name


def describe_symbol(name: str) -> str:
    """Return the meaning of a quantity in a few words."""
    if name not in BY_NAME:
        raise UnknownName("symbol", name, BY_NAME)
    return BY_NAME[name].meaning
