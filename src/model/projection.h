// Products with the projections of a layer, wherever their weights are.
#pragma once

#include <initializer_list>

#include "model/pass.h"
#include "model/weights.h"

namespace trireme::model {

struct Product {
  const Projection& w;
  Rows y;  // [x.rows, w.rows], as w.output says
};

// y = W x for all of the list, which are of one half of the current layer. x [rows of the own block (weight shard) or
// of the batch, cols]. The bits do not depend on how the weights are kept. With a weight shard every rank of it calls
// this in the same order, with no rows if it has none.
void project(const Pass& pass, ConstRows x, std::initializer_list<Product> products);

}  // namespace trireme::model
