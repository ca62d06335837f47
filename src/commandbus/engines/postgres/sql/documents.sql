-- name: now
select commandbus.now_us()

-- name: ledger_mark
select number from commandbus.ledger_mark

-- name: get_document
select kind, key, version, status, due_at, body from commandbus.document
where kind = $1::text and key = $2::text

-- name: get_documents
select kind, key, version, status, due_at, body from commandbus.document
where kind = $1::text and key = any ($2::text::text[])

-- name: add_document
-- Only if the key does not exist yet.
insert into commandbus.document (kind, key, version, status, due_at, body)
values ($1::text, $2::text, 1, $3::text, $4::bigint, $5::text) on conflict do nothing returning version

-- name: change_document
-- Only the version that the writer has seen.
update commandbus.document
set version = version + 1, status = $3::text, due_at = $4::bigint, body = $5::text
where kind = $1::text and key = $2::text and version = $6::bigint returning version

-- name: remove_document
delete from commandbus.document where kind = $1::text and key = $2::text returning version

-- name: list_documents
select kind, key, version, status, due_at, body from commandbus.document
where kind = $1::text and ($2::text is null or status = $2::text) and ($3::text is null or key > $3::text)
order by key limit $4::bigint

-- name: list_documents_backwards
select kind, key, version, status, due_at, body from commandbus.document
where kind = $1::text and ($2::text is null or status = $2::text) and ($3::text is null or key < $3::text)
order by key desc limit $4::bigint

-- name: due_documents
select kind, key, version, status, due_at, body from commandbus.document
where kind = $1::text and due_at <= commandbus.now_us() order by due_at, key limit $2::bigint

-- name: next_document_due
select min(due_at) from commandbus.document where kind = $1::text and due_at is not null
