"""One colour for each vector, the same in every figure of the book, legible on white and on black.

After the colour-blind safe palette of Okabe and Ito (2008), https://jfly.uni-koeln.de/color/, darkened where needed.
"""

VECTOR = "#0072B2"  # x, the hidden vector
UNIFORM = "#D55E00"  # 1, the uniform vector
MEAN = "#B8860B"  # the component of x along 1
PROJECTED = "#009E73"  # P x, what is left of x
NORMALIZED = "#C45D93"  # P x on the sphere, or for RMSNorm x on the sphere
OUTPUT = "#7B61C4"  # after gain and bias
QUERY = "#C81E3C"  # a query, and the set of queries that select a key
RANDOM = "#808080"  # random directions, and everything that is only there to compare with
INK = "#777777"  # axes and text
