"""From torch's gradients to rows and back."""

import pytest
import torch

from omnizen.errors import UserError
from omnizen.reducers.contribution import from_dense_rows, from_sparse_tensor, to_sparse_tensor


def embedding_grad(ids, num_rows=1000, width=8):
    table = torch.nn.Embedding(num_rows, width, sparse=True)
    (table(ids) ** 2).sum().backward()
    return table.weight.grad


def test_repeated_ids_cost_one_row_each():
    ids = torch.randint(0, 5, (512,), generator=torch.Generator().manual_seed(0)) * 100
    grad = embedding_grad(ids)
    rows = from_sparse_tensor(grad)
    assert rows.indices.tolist() == [0, 100, 200, 300, 400]
    assert torch.equal(rows.to_dense(), grad.to_dense())


def test_round_trip_to_a_torch_sparse_tensor():
    grad = embedding_grad(torch.tensor([7, 3, 7]))
    back = to_sparse_tensor(from_sparse_tensor(grad))
    assert back.is_coalesced()
    assert torch.equal(back.to_dense(), grad.to_dense())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_added_up(dtype):
    grad = torch.sparse_coo_tensor([[2, 2, 0]], torch.ones(3, 2, dtype=dtype), (4, 2), check_invariants=False)
    rows = from_sparse_tensor(grad)
    assert rows.indices.tolist() == [0, 2]
    assert rows.values.tolist() == [[1, 1], [2, 2]]
    assert rows.values.dtype == dtype


def test_one_dimensional_and_empty_gradients():
    grad = torch.sparse_coo_tensor([[2, 0]], torch.tensor([1.0, 2.0]), (4,), check_invariants=False)
    rows = from_sparse_tensor(grad)
    assert rows.values.shape == (2, 1)
    assert torch.equal(to_sparse_tensor(rows, grad.shape).to_dense(), grad.to_dense())
    empty = torch.sparse_coo_tensor(
        torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 6), (4, 6), check_invariants=False
    )
    assert from_sparse_tensor(empty).values.shape == (0, 6)


def test_other_layouts_are_refused():
    with pytest.raises(UserError, match="one sparse dimension"):
        from_sparse_tensor(torch.eye(3).to_sparse())
    with pytest.raises(UserError, match="got layout"):
        from_sparse_tensor(torch.eye(3))


def test_dense_rows_keep_nan_and_drop_zeros():
    grad = torch.zeros(6, 3)
    grad[1, 1], grad[4, 2] = float("nan"), 2.0
    rows = from_dense_rows(grad)
    assert rows.indices.tolist() == [1, 4]
    assert rows.num_rows == 6
    torch.testing.assert_close(rows.to_dense(), grad, equal_nan=True)
    assert from_dense_rows(torch.zeros(3, 2)).values.shape == (0, 2)
    assert from_dense_rows(torch.zeros(0, 2)).values.shape == (0, 2)
