// Elementary functions on vectors, for any Vec (vec_avx2.h, vec_avx512.h). Relative error is at most about 2e-7; NaN
// passes, infinities and large arguments give the limits. A lane's result depends on that lane alone. Every product
// that feeds a sum is an explicit fma, so that no compiler's own contraction can make two uses of a function differ.
#pragma once

#include <cstdint>

namespace trireme::ops::cpu {

// e^r for |r| <= ln(2)/2 is 1 + r + r^2 exp_tail(r). Coefficients: Chebyshev interpolation, relative error 1.1e-8.
template <class V>
V exp_tail(V r) {
  V q = V::set(0.0013933702F);
  q = fma(q, r, V::set(0.008363214F));
  q = fma(q, r, V::set(0.041666463F));
  q = fma(q, r, V::set(0.16666576F));
  return fma(q, r, V::set(0.5F));
}

// x = n ln(2) + r with integral n and |r| <= ln(2)/2; ln(2) in two parts, the upper short enough that n times it is
// exact.
template <class V>
V reduce_ln2(V x, V& n) {
  n = nearest(x * V::set(1.44269504F));
  return fma(n, V::set(-1.42860677e-6F), fma(n, V::set(-0.693145752F), x));
}

template <class V>
V vec_exp(V x) {
  // Beyond these e^x is 0 or infinity in float32 anyway. The order of arguments keeps NaN.
  x = min(V::set(89.0F), max(V::set(-104.0F), x));
  V n;
  const V r = reduce_ln2(x, n);
  const V e = fma(r * r, exp_tail(r), r) + V::set(1.0F);
  return scale2(e, n);
}

template <class V>
V vec_sigmoid(V x) {
  return V::set(1.0F) / (V::set(1.0F) + vec_exp(V::zero() - x));
}

// e^(2|x|) - 1 as (2^n - 1) + 2^n (e^r - 1), without cancellation near zero; |x| counts up to 10, where tanh is 1.
template <class V>
V vec_expm1_twice(V x) {
  const V a = min(V::set(20.0F), abs(x) + abs(x));
  V n;
  const V r = reduce_ln2(a, n);
  const V power = scale2(V::set(1.0F), n);
  return fma(power, fma(r * r, exp_tail(r), r), power - V::set(1.0F));
}

// tanh |x| = t / (t + 2) with t = e^(2|x|) - 1.
template <class V>
V vec_tanh(V x) {
  const V t = vec_expm1_twice(x);
  return with_sign_of(t / (t + V::set(2.0F)), x);
}

// tanh(x) tanh(y) with one division.
template <class V>
V vec_tanh_product(V x, V y) {
  const V s = vec_expm1_twice(x), t = vec_expm1_twice(y);
  return with_sign_of(s, x) * with_sign_of(t, y) / ((s + V::set(2.0F)) * (t + V::set(2.0F)));
}

// log(1 + t) = 2 atanh(t / (2 + t)) for t of [0, 1]. Coefficients: Chebyshev interpolation, relative error 1.6e-8.
template <class V>
V vec_log1p_unit(V t) {
  const V s = t / (t + V::set(2.0F));
  const V z = s * s;
  V p = V::set(0.13433774F);
  p = fma(p, z, V::set(0.14116979F));
  p = fma(p, z, V::set(0.20003836F));
  p = fma(p, z, V::set(0.3333332F));
  return fma(s * z, p, s) * V::set(2.0F);
}

// log(1 + e^x).
template <class V>
V vec_softplus(V x) {
  return max(V::zero(), x) + vec_log1p_unit(vec_exp(V::zero() - abs(x)));
}

// Calls f(offset, lanes) for each vector of a row of n; lanes < V::kLanes only in the last call.
template <class V, class F>
void for_vectors(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) f(i, V::kLanes);
  if (i < n) f(i, n - i);
}

// Loads and stores that take the lane count of for_vectors.
template <class V>
V load_lanes(const float* p, int64_t lanes) {
  return lanes == V::kLanes ? V::load(p) : V::load(p, lanes);
}
template <class V>
void store_lanes(V v, float* p, int64_t lanes) {
  if (lanes == V::kLanes) {
    v.store(p);
  } else {
    v.store(p, lanes);
  }
}
template <class V>
V rounded_if(bool round, V v) {
  return round ? round_bf16(v) : v;
}

}  // namespace trireme::ops::cpu
