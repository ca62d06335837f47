-- Small named states that processes share; what they mean is decided above the store.
create table commandbus_document (
    kind    text not null,
    key     text not null,
    version integer not null,
    status  text not null,
    due_at  integer,
    body    text not null,
    primary key (kind, key)
) without rowid;
create index commandbus_document_due on commandbus_document (kind, due_at, key) where due_at is not null;
create index commandbus_document_status on commandbus_document (kind, status, key);
