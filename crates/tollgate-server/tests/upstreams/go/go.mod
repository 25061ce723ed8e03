module tollgate/upstream

go 1.26.0
