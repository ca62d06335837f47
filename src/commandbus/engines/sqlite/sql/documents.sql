-- name: get
select kind, key, version, status, due_at, body from commandbus_document where kind = ? and key = ?

-- name: get_many
select kind, key, version, status, due_at, body from commandbus_document
where kind = ? and key in (select value from json_each(?))

-- name: add
-- Only if the key does not exist yet.
insert into commandbus_document (kind, key, version, status, due_at, body) values (?, ?, 1, ?, ?, ?)
on conflict do nothing returning version

-- name: change
-- Only the version that the writer has seen.
update commandbus_document set version = version + 1, status = ?, due_at = ?, body = ?
where kind = ? and key = ? and version = ? returning version

-- name: remove
delete from commandbus_document where kind = ? and key = ? returning version

-- name: list
select kind, key, version, status, due_at, body from commandbus_document
where kind = :kind and (:status is null or status = :status) and (:after is null or key > :after)
order by key limit :limit

-- name: list_backwards
select kind, key, version, status, due_at, body from commandbus_document
where kind = :kind and (:status is null or status = :status) and (:after is null or key < :after)
order by key desc limit :limit

-- name: due
select kind, key, version, status, due_at, body from commandbus_document
where kind = ? and due_at <= ? order by due_at, key limit ?

-- name: next_due
select min(due_at) from commandbus_document where kind = ? and due_at is not null
