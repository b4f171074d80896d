"""Every loss written a second time from its formula, with lists, loops and `math` only, to compare with."""

import math


def softmax(row):
    top = max(row)
    e = [math.exp(z - top) for z in row]
    return [x / sum(e) for x in e]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def sp(x):
    """softplus"""
    return math.log(1 + math.exp(-abs(x))) + max(x, 0)


def ce(z, y):
    return mean(-math.log(softmax(row)[label]) for row, label in zip(z, y, strict=True))


def ls(z, y, alpha=0.05):
    total = 0.0
    for row, label in zip(z, y, strict=True):
        for k, p in enumerate(softmax(row)):
            total -= ((1 - alpha) * (k == label) + alpha / len(row)) * math.log(p)
    return total / len(z)


def fl(z, y, gamma=3.0):
    p = [softmax(row)[label] for row, label in zip(z, y, strict=True)]
    return mean(-((1 - p_y) ** gamma) * math.log(p_y) for p_y in p)


def flsd(z, y):
    p = [softmax(row)[label] for row, label in zip(z, y, strict=True)]
    return mean(-((1 - p_y) ** (5 if p_y < 0.2 else 3)) * math.log(p_y) for p_y in p)


def dualfocal(z, y, gamma=5.0):
    total = 0.0
    for row, label in zip(z, y, strict=True):
        p = softmax(row)
        below = [p[k] for k in range(len(row)) if row[k] < row[label]]
        total -= (1 - p[label] + max(below, default=0.0)) ** gamma * math.log(p[label])
    return total / len(z)


def sure_and_right(z, y):
    """Confidence of each sample, and 1 where its prediction is right."""
    r = [max(softmax(row)) for row in z]
    return r, [float(row.index(max(row)) == label) for row, label in zip(z, y, strict=True)]


def mmce(z, y, weight=1.0):
    r, c = sure_and_right(z, y)
    total = 0.0
    for i in range(len(z)):
        for j in range(len(z)):
            total += (c[i] - r[i]) * (c[j] - r[j]) * math.exp(-abs(r[i] - r[j]) / 0.4)
    return ce(z, y) + weight * total / len(z) ** 2


def mmce_w(z, y, weight=1.5, single=False):
    r, c = sure_and_right(z, y)
    right, wrong = [a for a, ok in zip(r, c, strict=True) if ok], [b for b, ok in zip(r, c, strict=True) if not ok]
    if not right or not wrong:
        return ce(z, y)

    def k(u, v):
        return math.exp(-abs(u - v) / 0.4)

    cc = mean((1 - a) * (1 - b) * k(a, b) for a in right for b in right)
    ww = mean(a * b * k(a, b) for a in wrong for b in wrong)
    cw = mean((1 - a) * b * k(a, b) for a in right for b in wrong)
    m, n = len(right), len(wrong)
    if not single:
        cc, ww, cw = cc / (m * m + 1e-5), ww / (n * n + 1e-5), cw / (m * n + 1e-5)
    return ce(z, y) + weight * math.sqrt(max(0.0, cc + ww - 2 * cw) + 1e-10)


def acls(z, y, margin=10.0, absolute=True):
    total, n, classes = 0.0, len(z), len(z[0])
    for row in z:
        for value in row:
            if value == max(row):
                total += 1.0 * max(0.0, value - (0.0 if absolute else min(row)) - margin) ** 2 / n
            else:
                total += 0.1 * max(0.0, max(row) - value - margin) ** 2 / (n * (classes - 1))
    return ce(z, y) + 0.1 * total


def mbls(z, y, margin=10.0):
    return ce(z, y) + 0.1 * mean(max(0.0, max(row) - value - margin) for row in z for value in row)


def cpc(z, y):
    classes, bdc, bec = len(z[0]), 0.0, 0.0
    for row, label in zip(z, y, strict=True):
        other = [row[k] for k in range(classes) if k != label]
        bdc += mean(sp(-(row[label] - value)) for value in other)
        if classes > 2:
            bec += sum(0.5 * sp(-(a - b)) for a in other for b in other) / ((classes - 1) * (classes - 2))
    return ce(z, y) + 0.1 * bdc / len(z) + 1.0 * bec / len(z)


def ecp(z, y):
    return ce(z, y) - 0.1 * mean(-p * math.log(p) for row in z for p in softmax(row))


def mdca(z, y):
    p = [softmax(row) for row in z]
    return ce(z, y) + mean(
        abs(mean(row[k] for row in p) - mean(float(label == k) for label in y)) for k in range(len(z[0]))
    )


def esd(z, y, weight=4.0):
    r, c = sure_and_right(z, y)
    n, total = len(z), 0.0
    if n < 3:
        return ce(z, y)
    for i in range(n):
        x = [(c[j] - r[j]) * (r[j] <= r[i]) for j in range(n) if j != i]
        total += mean(x) ** 2 - sum((v - mean(x)) ** 2 for v in x) / (n - 2) / (n - 1)
    return ce(z, y) + weight * math.sqrt(max(0.0, total / n))


BY_HAND = {
    "vanilla": ce,
    "ls": ls,
    "fl": fl,
    "flsd": flsd,
    "dualfocal": dualfocal,
    "mmce": mmce,
    "mmce-w": mmce_w,
    "acls": acls,
    "mbls": mbls,
    "cpc": cpc,
    "ecp": ecp,
    "mdca": mdca,
    "esd": esd,
}
