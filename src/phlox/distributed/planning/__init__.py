"""What a step costs on a mesh that is not there, by formulas."""
