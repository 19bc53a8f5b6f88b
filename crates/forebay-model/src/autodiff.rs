//! Gradients, graph to graph.
