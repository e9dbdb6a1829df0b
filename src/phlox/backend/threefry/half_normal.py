"""The half-normal quantile as integers: how every engine turns uniform bits into the same normal numbers.

Written by `tools/make_quantile_table.py`; do not edit. For m in 1..2**24, the magnitude of a standard normal number is
Q(m) = -ndtri((m - 0.5) / 2**25). `NODES[k]` is round(2**26 * Q(m)) at m = 2**(k // 512) * (1 + k % 512 / 512), for k
in 0..12288, and between two nodes every engine interpolates linearly, in integers of 32 bits. With `bits` the float32
pattern of m (exact: m has at most 24 bits), exponent and leading mantissa bits name the node, 14 bits the fraction:

    k = (bits >> 14) - ORIGIN
    r = NODES[k] - (STEPS[k] * (bits & 0x3FFF) >> 14)       # STEPS[k] = NODES[k] - NODES[k + 1], at most 103063
    Q = r * 2**-26                                          # float32(r) rounds to nearest even, the product is exact

No product reaches 2**31, r falls strictly as m grows, r > 0, and |r * 2**-26 - Q(m)| < 2.2e-7 for every m
(3.4e-7 after the rounding to float32). The tail is where m is small, and there the nodes are densest: Q(1) = 5.54.
Floating-point formulas would not do: libm, fused multiply-add and vector mathematics differ between engines.
"""

from __future__ import annotations

import base64
import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["NODES", "ORIGIN", "STEPS"]

ORIGIN: Final = 127 << 9
"""What the float32 pattern of 1.0 gives, shifted right by 14."""

# The second differences of the nodes, as little-endian int32: two running sums give the nodes back, exactly.
_PACKED = """
eNq9XVtvnNd1ncRNnbgih0PODDnkcDgkRyRFUhQpSqJEWqTusi3akmxZki+y42tiu2lQ9H5v0VvSS5DegNToJUXQoAGKGij6UCBAgbYogjR9KfrcH9DnvvRt
+g18DryztNY+5xsXFbCxzznf8FVrnbXX3uc7f7rWvP3Bf/zXX1cqlUF8K8RfFfHNIv6yiG+E+Isivl7EnxfxZ0X8SYj3i/jjIr4W4o9C/GERf1DE7xXx+0V8
pYivFvG7IX6niN8u4stF/FYRv1nEl4r49SJ+o4hfC/GrRfxKiF8u4pdC/EKIny/i54r42RA/XcTPFPFTRfxkiJ8o4sdD/FgRPxryF8P6iyF+pIgvhHiviB8O
+d0i3gnx+SI+F/LbRbwV8psmXi/ijSJeC+vPhng15Adh/SDEyyFeCvGiifsQd4u4F/LzJu6EeC7EsyFuh3wrxGD/TFgP8s0ing4x2B+G9Y0QhyE/afJTRTwR
1k+EuB7yNRODsythPchXQ75s8iAuhXwxxCWzvlDEQVgfmNg3+bzJg3jc5L2w3g3rGIP9ubA+Z+KsWe+E/SDOQD4d1jZOhfMYp0Jsh/1Js98O+5gHsQV5M+QT
Jm+aOEFiI+TjJm+EHNfrZr8OsWbWqyavhVg1MdivhHzMxGo4Xwnr5XAez+J+GWLwbSmsl8h6EEdhPYie2fcgL5K8GL7b9YLZL5i8YPbzZh/X3fCtG85idGGt
Ys7kuO6Ys4751jE5rmfNPsasOY+5bfKsiTbkGbNvm/2M2cds19Nk3Qp5OsSMWatokRzXU+ZsypzZ/aT5m0nzbcqcTZlvdo/ZxuCsSc6bIabMugnfBusGfI/R
IOt6+Ju6OW/A97ivmzNcN2A9Yc7i/s1/6vdvBjx4OuTDgAsRCw4NDhyG//8tFqTw4HrIVw0mXCWYgHhwieDBQdjvm/1+wIl9gwMH4f//fcCDxw0uIB7YOEdw
wcaOwYOdEKdDPmPw4RRgwymIbQjEBIYHWwYDtgwWxLMNc7ZBcGHDYELEA4sLMa+ZvG4wADEh/v+PeRVwwUbEgmOAByuABSsGA5YJHni4gPiwaDJiQg8wwcOF
iAWYLTZYfFgQmDAf/g+fT+CCxYc5ggdzBgvmHGyYFfjAog04gBjRBoxoC3xgofABcaIV1q0S+IDrFllbLJg2/79jRIxowpnCCIsJUwlsiJhgM8MEhhENOKsD
NiBGNAALmgYL7DnixgTgxgScj5tz+61uzibg+7jJ8dye4fkEnI9DDM5qJMfvNfh9jXy3ZzGPQa7BWQ1iDHJc232V/LYKv2VRNX9v12MkD2IU/tZGPIu/+eC7
/T5i4m7Yn4O70i65I0UsPGfuRjsGB88YbERcPE0wcRsy4uG2c09imLhl7kabBgfL3pXW4b5ksdHiYw4uKmxcgbxscHKF3JPwvrRcEhctPvZgbfHwaMAwdmda
gDXemxAfGTayu1PXnHcNTs6Zdcdke3eay7gzYZ4V96ece1Nb3Jna4t6Ug482zxgsTN2bEBPZ/cniIcPFKbg/tQAjJ8UZ3qGaBCeb5C7VhNwIv/Hw0d6pGD42
CSY2BCaq/QRgZZ3gIcPHOmAgw0iLhw3APRYRI2sOViqctJg4ITBxwsHGccBChYsME8cJJtpvVYGXY2TvYSXi4phYVwEXETOrZF8FzMSzqjiLvx8xGX+DZ3Y/
IvIonI2asOe4tr+J+//+Xr9/muiW7K7K9EuLzwyXt8h99QTcWRGPLSZvlMTldXJXXQMtcxW0zGOOhhn1y1XA4hW4q6o7a9wfDWc2L5HcA1y260WyXgB8tji9
IPI8YDTiMmLxAmDxvKNlzgP+dgk2d8y+Q+6smDuOnjmb0DPbgMWz4t4a76GzoGUybZPhNLu3KmyeBkyeEZiM91eWvZgka+/uyjROxOZJR+fMvceWwei60Dxz
MbqewOkJgtd1B6ttniD3Wba32D1R4i47TqJG7rUKp2tkX3P2Y2SvsNvD6ZyokrNR525bdfDZ7kfJHddmhduj5HzE/N0o/AbXo+R3I2RtMXiUnDHMtr89Er4f
IVg+AhHPjpi/xbNr/9bvnyIatMJ1xPZNgu0erm9AoAaNdcnjCVxfc2qTq3DXXoW79iro0DnYvmzwHLO6d/dIvfIouW+jFt0DfM+pVTJ8Z7i+IPTorqNHzwOu
dwHL1f27Q+7hnYz7t6dLs5rlsNp0G3Cd3b3bBrM9fTrn/t0Sd/EpsZ8SNUwP26cEtluMnzJ37SbB+ybB+2ZmHRP16UmhUzfgfALwHrG+QfCdhYf1nlaNuM7u
4WqP9+8Jge3s7j0Od/QxuJPbs7ESWF8jd/WUds00bIb9OffxMedOzu7hVQf3PR27KnC+Ku7io3DGeIDC/JEE9o9m3tGPZNzPRwWmjxIOMEK+HYEz/O3ffu8j
/EeNfZtgvsL+lCdpA9bD3umtLwl19nVSf14l93mmta8k/EkrUINGjxLe6y3eWw7QIxwA7/WI/z2C+4sC9xcJ7qv7fc7dfh7wPqcuzXxLnv7eJjwANXjGA9pC
i2f6u+ddwnv+tKPFezp8y9zlMU8793vE+5SPybvrKw4wBfp7rhbfFBr8pLjfTxL8b4i7P3KAZkKPV76mOvE52f144t4/TjSAicRdvy5q1Qr7Gf57tWvE/prQ
6WsO/petY1tNflzUr1Gz9zhATdzzGSeomfs/y2V0eqXZjxLsZ/d+hvlVoc0rXqC0+irBdqULjJCMWsAo4QLqrj9C4uv/2u9vk3o7etBQB2BcwNP2Txhf2nGn
7o7+5Fhj3wBv8hrhBEoLWAUukNICLCfAGvwS1OKXyPqo2R919IAe1OFT/rTFhEdtgfCCBaEFoB4wL7jAvOACWItnmv8c0QdmiV9tjtz/mS5gNX9czyb8akwb
YFyg7ej/Xl1+BvQB1AZS9flWojbPdP+Wow98nBq98rFNOhpBw6kFNDJ0ArZmNQHmfZ7I4AipWr1XC1AaQU4oXsByTexT/rYJhw/USI0APW9jTi7DD8aIhlB1
dAOWFU9AD9yYk8tyhKqjHzDdwOMIw+gG7By5AtsPwxNGoIaw990P6//Yq7QNNf+TghPYusAW9CtZD57iBLbevwn+9A3gASmNAPnBKvHlrTo+deQHtu7vaQQr
iT4mphUsCV/eEtEHLBdgNQLkB8wDkNPXpLjBgtPf1BVedtQJmFbQJfV/5gXoCB97rpcdOcIMWXu9Tp5m4OkGyr+Ha692MO1oBdNCL2DcoCU4AXID9Ls3nX6o
BmgJkx+zjsD0hIbwDjC/e8r33iAegSbhBqyOUCf+9wmiIzRI7aAutANPQ8ipJ4yX8PmleEKKI9RIMG+f8vupOkPKU6C0BPTDKy/8WAZnqDr7UeExyKkvKD1h
DDDf4wnoI0jpCSldAXnD177zIf6fMf5827NmvYDbwBNyuMEmcASlF2xm+PQ3QDM4TjwDG8AJjguv/qrw7B8j3sBVx6/PdIMyvv2ydQTsaeuJWsKiOV8gHn5W
T1jI8BPMO56C+f/DPrccT0HZXmjlG0SPP/P2p7yDjBu0M2sLTEeYSfgLlJdwOoMnYGZ1BraeJNzB4wroK7C/aZA8KbSEplNnaIo+gDpZ14W+UM+oNzSG9Bgi
V2gk6g2qZ071A4xnaAyevjDu+A29vgDWE1ATvKFsf4DSGDz+oOoQqRpEjXgQUv0CKU/CMDpDqm+A+RBTNYlRwSssn/j2v/T7rJcdZ5uU6WfHXgH0Em47fsIt
0r+3KXyFOf3tliMgP0BucNzwAjb/ZJXUFry+vhyP4YrQEFR9wet9Z14DjyP0KnwuSo/wgp7gCOg7mIe+v67DE3J8h+g/7BDv4ZyoN3RED+AwegLyg07A5k6C
JyhdYQb6DlK6gtIWpp2egxlHT8jhC7m+RE9bGLb+kOtNSGkL1o8w6XCFScIZGsKfoDgD4w71RO9gyqtYT/QkpLwKqieB6QxlexTGndpELdG34PUslK1NYL9C
Dn9Q/QtV0W+oahQeb6gS/0LV8TiOCl9jNdHPMCo8jWNOfSKuv/nP/T6bc2Pnn+2QUPyA9RFuA1c4Cett4jv0+gntXDTWd2Bn4GwQnmB1hHWT2Wy045WH+/3X
hQ9x1fEfRJ6wYrKtLeTMxcmdAaA8CGoOAPMlsnkAiisskLzocITICxaFNxFnA3gexXnwIMxnagqKKyi/Ykd4Epim4M0LUDMDUnxBcYVU7wKbu6Z4QyvRr6i8
CtPEo5DrV/Bm7rQqfN5Ojm+BzWhL9S+mdIYmcIk6nHt9Dl6PQ0NwBTWPp0yvQ72i5/QM2/OQ42VI9T3k1CjGxbrm8IncPoia8DewNXIJz+NgOYJaez5Ith4t
wSOqglMo7nDzHz+c/xPno+6adeQEu4EH7BpuwGbhRV5gtQTLD3aMfpCaNWDnAHmz8Vh/Iqs1bIKmsJHQEmzPAnIEqyF4esJ6oleR1RxY3wKbEXSM+BQtZ1gi
nkXGF3JmrHqzVnvgWeyJfgbmXYxn88THyPoamE+hm1GHyOlr6JLexjlHYyhbi5gl63YlfwbfbEnOgH7GWdAT2glv47TgD6z/AesT2PcwTeoQaoZrzjyiKVGj
YPyhCZ6G3JkH2BuptAfmgUzN72M1CjabqFmiL6LhaA1Kb6hX/NlF9Qx/A+MO3nw/VrNIeR3GM/nDeII35Pgjc/0OORpETt0iR4dgPZVjhFtUnbXyQvzNP3yI
/3ZO7vmA/96sXJwLuAsawm7lo7mAbGbu2crDMwJzeMJp4lFM9S/YPsbtkp4E5AibwA1YHwPra9wwfQzrIhRXYLWHtQyuoDgDm8eu6hCWMyyRPoe47pkzrEPk
+hm9OgT6GZE35PRA4rz21AzCyBEWgBfMZ/gbuxU9G6HjcAfWA9EReTbhY1Bag9cToeYV5tYo2uBlYLN9W5W8ue+qPwKz4hGpHgk1E15pD9br2KrwefA5+oPn
dcC+CaxZTIp6RYP4Jb2ZSrk9lqq/siH0B/Q6eDMXhu2rUHoE80HURF2jVknPZKhlcIqyXoicyNEl2Fzh3HlM9m8++Ha/f7Hy0Qx9fFvFztQ/X3l4nr7iCnGG
MM7U3wOOcA40hR1Te0C+gPOEd4gvgekKjC+kuEKuh5HNP2A9Dp5PwZvFn1OHWMvkDDm9kKl+yJyeyOVEPcLzLqj5xGxWceptF+VjwDn+vUp6nj/zPHbJPqU3
ePMU1EyFFH+w+zKzFbwZx0p7yPU3tIUf0tMePP2hlVG3SPEI1CPKeB7YLOSW02fp8YdU/SKn/7JZwi+Z0iJSvslGRc9ObkIfZtPRI+oVPbehntmXmfJD1DP6
L1K+SjZvueZoFV6tg813yuUUarbDuOOpVO8TqDmPV/6+3x+8p2PjYuX731+L+YLhCOwttvMmR57gvb/zuOEIe6QGge8OsPfZvHfadkQN4jT4FU45tQhWhyhT
i2DzkrYIX7Dv9eDbPWoeck5/JHIFb5aSeruA9ULgPCWlNbDeCM/PoOYrsf7JMrOWsEbhzVdIvQOkuIM3a4G9Faf0hy7ssa8yl0Ng7cJ7Sw73TH+YM1whp5ei
A72WXv0iZ2Yj8gflfWiL/ss26a1gfslh+izUzAY110nVNNQbC+otIuQSON+x6egTilPgmvEL5Y0YpnfT81eyN+1SvRmMT+TOfPBmQY8LjsF8E947R+wNh1Tt
Q3koUhwjxS+e/Lt+P77XeqXy/W/yxVBv8zG+YDnDAXCGC0ZPOACugG+4Il9gtQj7RtGeqEWwt113zJq9WZTiDadFDwTrk0y9+Zp650/xBu/NP+ZlOCF6Jz3N
wdMdUvwB6xRropeyzFxGyx/YfMblSvpdJDV/IcUhUjOaGH8oO7/R66fw5jiy+kXOjIauqGF0hV9S9Vh0K3yuU049I6VH5OgSTJvw6htlOIWqb7QJh0j1bqoZ
UClOoXo4pyr+bKhJJ3t9ncozkeIWuEf/hDdTMqfuMcxcSU+7aHzMHg7lw6wPUQtRXKNMP2jOXGqsibz/Qb8f3+1V7/fiu+6WL1wTnOFK4AZXBGdQvMFyhwOi
N+yD3nDenGFdgukNu0RzYH5H9DruAm/YEf0RZyDju4feO/G2XyJVq8B+Su9NxC2nXsHmLrD5CyxyZjhbT6T3biJ7Z17pEDnvOigusUzWS6BHqBmPzCvp6RGq
F9N7d/Go4BFqxhOb4aBmPSleod5+Ss10KFvfSPVipN5t7DgeS7bOeSuqk+mzzOUV1mfpzZJM9XcqXjEt1lMVPm+SaRZqzqSaN4lvJbcyvBTDzKb2OAabN8Vm
SUxm+jMnh+QZil/kzKJK9Yyyt6yU74LNpfLqJcrH+T/f6vefLvIgDiFuhHjK5BhPmrDc4brhENfC/nrgB9fD2VUT1wI3uAp6wxXQGy4Db4jrCyX4A9MdUHM4
TzyQ54nugNyB1SzOQmZ+yHPED3kWeit3gD+w9xrPkD7LXB1i2+ERW6BHbGb0VWwZ/mD9kptQx1BcwvKIDaJFeJpEqt9iNVHbwLwi/JTem1GRUxxzvBHLmX0Y
y0Kf8DwS7F2pHql39IRngr01pWZLL1b4O8/Kb5k7B8KbGdV1vJfdSnqGVG4dZNbp5fDeq1JvVqBeoWZRqvcrvHekc96UzuEaKb9Fy+EdLYd3sNwq2TOamk2F
s69TPs6c97Ga5Dy3blLWj5HqL2X6BvKMFO9A7vGZb/T7t4v8bBG3Q9wK+WZY3zTxTMhPh/XTJg5DvmH4w6HhDzcCT4gc4gnDJZ4wPOK64RHXDW+4ZrgE8ghV
t7giOARyCfQ6sPoFq2HsQ/3C8z1YHnHecIfHCZc4BzUN5pk8S3wQamYD+ibZzAbUJlJ1jdOgS3hvR54UPZqq/4LNhkR9AnsxPJ2CvTOJGsWG469kM6HUbCiv
5sHeo1opyS9y5kYpDwXOmLQ9G8vQs5EzS6rneDJ7mT2gzJuZ2wuaUxfx5kgwHaNb4bOsFddgWkYXaiPdzL6P1PuYnrbhvYmRM3vCeyODzaGYNXxBvaWFHIPV
T9S7Wt7sy2lSP2FvbTHOgb0i0xU940rVVLwe1JzZV5OOZ0PNvxqmNzXFRfbe7/fvFfluEfeLeD6s74Z1jDshP2fiTuANNm47POIWcAjLJSKfODT7GyYjl3gK
ArkE0yOugyZxzfAIm1U9A2saVwJPuGw4xOXAES6ZfGAy81HuG15xYPjEAem72Acucd6pcShPJfoqd8FXyWZAnRX9GGoelJoJxfyWqj8jx3OZ6u1MeShYDSTV
u7Eh/Jg5M6kt7/BmReS8YZHqBWX9oLavo8xsyhy+4c2hSr2J5c2k8uZSpTiH94a295a294aW1xeiZlIo/uHVUpTe4XEP5BlK+5gF3wbjHTl1lTnh11AzsNAX
mjPTIucdT69H1fNyTFf0rAvP0+G97eX1r3r+Dk8LYX0oU6IvZUr0pDBu8tWv9PsPivxKEYP8sskvmfxiiMH6hbC+H9YvhPU9ky2fuAdc4nnDJe6EsLxCcYpb
Jt8CbeKZsI+axE3QJqw+cQgaBdY5ngz5CZMtr0CNwtY6rjncQmkVl4VecQm4RU5/RuzlvAjcgnknkF8w7yXjF3vANfYytAvGMXCO1FnHU4H9n+ipYD2gyDHO
VB5+w4LNrD7p1EhSfR4nCdfwNI0TpPdDzaxk9RLsATlO+kbRg8F6QdZK9JLaWVWpGgrWUfBdrVyf58oQfk/l1cipq7D+kZ7j2+g5vSTMB9ojvKMHPSXYW8J0
jwXRm5ozSzNHB1F1lziLe97pXe1W0jMwcmswns9Dze3O5STD+EoVJ/HmbrFeWMZRcHYGek3V++PTUJPJ4SZLv9jvv13kN0O8VcTrJg/ijSJeC+vXQnw2xKth
/0pYv2LigYnIK14yvMJyihcNl3gxcIa4j1zivtEm7oFGcddoFHcIr3g27G+Hva153ApryyluG06BWgXjFlj/uGF8FKhZ3DA84inho/C8FFgHQX5hOcZlk7GX
I8UxLpGayAWhYVwAf8V+5eH5EQegYewTnrEH3gucJ7GX0fOB9RJVKzlLuMbZwBe8eRNsRhW+i8H4xini7fT0DfRlWP6BngyrdZwQOseJEryDcQ/v7S2md7C3
u5ne4fGOYbkH6ytZFf2pSvtQs7HUTE01K0v1nqTe+Drq8A/Wx+rN6mbvf7G3PZSXdCGhi8xncJHUW6KqZyXFQ5B7zIu+lTmhh2CNBueBzzp5GC6SmteVO7ur
TTwjM5l6SVz/+5v9/ntF/kIR74V41+R3ivh8WA/y50wexNsm3goRecQbId40PMJyiNcDh3gtcIfIJ141XOJBWL8c9pZHvAxcImoTLwWuYDnFPZOtRnHPcApW
84ic4lmTmU5xm8RN0CqeAb3CBuMSh6QGckPUPzxP5v8Hl0DN4iJoFZccvQK9mqpPlPWLPp7oGWVzJnL8FqhXnBN6xdnKw/MnUm9lsDmXyCVYjcTOsmJ+zlPE
f6F6RNTbW5tCs0Bvp5qdzXpOc3tGVO+p98a358mIdZF18GN4vag5dRJ8mwM1CuX79HgCztP0vBk4W1P5P7FftZeokyxW9BviPeEB9d4KzfFn4BytruMJnQNv
qOIEuTM55wT257wZhjMx5j6mBsHqIu1MnMeeE+/9UdQa/vNMv/9uwHeL9+8YjI/xlsF5i/GI768bjcBqBa+YbHH9gcD0Fwym25rDfag33DU1hrtEC3hOYPdt
g983Tb5lsvUqMM9jDj4zXPZqB7ZmYHssvf4I5j9Q9/ULpi5wXvRD4Cxo1gNxzuRdofXjvVvNWzhDehzwHWr1zuS2wLyTlbz3IPAurDR35h1kenrqbWl2R2X3
UsQWvHPiTEW8T3q6tfeG02Il/faCV8+eI7ow6/Xz/j/tkDtS2/HHzzhaKvOSsbmAXh/9VEW/QZSam4Pzer25u9hLbnu1sP+bzYrB2bXqHRw1c9573xbfqFVv
0I+Y/RFYx/0REY+F74+Zfcw/ZPJnzP6xsMcc49Ph7NMh4tmjsI7ff9CcPRr2j5r4lDn/lDmLe1z/AFk/YvZx/UmT4/kjZv/JEI+YdYxPwDruK2b/icpH/+L6
fwF9PwRc
"""


def _unpack() -> npt.NDArray[np.int32]:
    differences = np.frombuffer(zlib.decompress(base64.b64decode(_PACKED)), "<i4")
    return np.cumsum(np.cumsum(differences, dtype=np.int64)).astype(np.int32)


NODES: Final = _unpack()
"""round(2**26 * Q) at the 12289 nodes, int32, falling."""

STEPS: Final = np.append(NODES[:-1] - NODES[1:], np.int32(0))
"""By how much the quantile falls from each node to the next, int32."""

NODES.flags.writeable = STEPS.flags.writeable = False
